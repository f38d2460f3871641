"""The orders of all queues, from clusters and copies by start, or from a plan."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.plan import Plan
from ...ir.timeline import Placed
from .instance import Hop, Instance
from .simulator import Move, Schedule


def in_order(
    instance: Instance,
    policy: str,
    clusters: Iterable[tuple[int, int, tuple[int, ...]]],
    moves: Iterable[tuple[int, Hop]] | None = None,
) -> Schedule:
    """A schedule of (cluster, device, lanes of it) and (value, hop), where the order of copies is to be kept; hops that
    wait in no queue are left out."""
    lanes: dict[str, list[str]] = {lane: [] for names in instance.lane_names for lane in names}
    for r, d, taken in clusters:
        for lane in taken:
            lanes[instance.lane_names[d][lane]].append(instance.names[r])
    copies: dict[str, list[Move]] = {} if moves is None else {name: [] for name in instance.copy_lanes}
    for v, hop in moves or ():
        if hop.lane >= 0:
            ends = instance.devices[hop.src], instance.devices[hop.dst]
            copies[instance.copy_lanes[hop.lane]].append((instance.values[v], *ends))
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
                lanes.setdefault(lane, []).append(step.cluster)
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
