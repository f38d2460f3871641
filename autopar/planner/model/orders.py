"""The orders of all queues, from runs and copies by start, or from a plan."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.plan import Plan
from ...ir.steps import Placed
from .problem import Hop, Problem
from .simulator import Move, Schedule


def in_order(
    problem: Problem,
    policy: str,
    runs: Iterable[tuple[int, int, tuple[int, ...]]],
    moves: Iterable[tuple[int, Hop]] | None = None,
) -> Schedule:
    """A schedule of (run, device, lanes of it) and (value, hop), where the order of copies is to be kept; hops that
    wait in no queue are left out."""
    lanes: dict[str, list[str]] = {lane: [] for names in problem.lane_names for lane in names}
    for r, d, taken in runs:
        for lane in taken:
            lanes[problem.lane_names[d][lane]].append(problem.names[r])
    copies: dict[str, list[Move]] = {} if moves is None else {name: [] for name in problem.copy_lanes}
    for v, hop in moves or ():
        if hop.lane >= 0:
            ends = problem.devices[hop.src], problem.devices[hop.dst]
            copies[problem.copy_lanes[hop.lane]].append((problem.values[v], *ends))
    return Schedule(
        policy,
        {lane: tuple(names) for lane, names in lanes.items()},
        {lane: tuple(own) for lane, own in copies.items()},
    )


def kept(plan: Plan) -> Schedule:
    """The orders of the lanes, copy queues and wires of a plan; copies over what is no link are left out."""
    machine = plan.costed.machine
    lanes: dict[str, list[str]] = {}
    copies: dict[str, list[Move]] = {}
    for step in plan.steps:
        if isinstance(step, Placed):
            for lane in step.lanes:
                lanes.setdefault(lane, []).append(step.run)
            continue
        link = machine.link.get((step.src, step.dst))
        queue = machine.queue(link) if link else None
        if queue is not None:
            copies.setdefault(queue, []).append((step.value, step.src, step.dst))
    return Schedule(
        plan.policy,
        {lane: tuple(names) for lane, names in lanes.items()},
        {queue: tuple(moves) for queue, moves in copies.items()},
    )
