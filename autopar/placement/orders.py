"""The orders of all queues from runs and copies by start."""

from __future__ import annotations

from collections.abc import Iterable

from ..problem import Hop, Problem
from ..simulate import Move, Schedule


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
