"""Runs dealt to all devices in turn: a placement that moves as much as it can, to try a runtime with."""

from __future__ import annotations

from ..model.problem import Problem
from ..model.simulator import Schedule


def round_robin(problem: Problem, room: float = 1.0) -> Schedule:
    """Each run, in graph order, on the next queue of those it may use, whatever `room` there is; a colocate group
    counts as one run."""
    queues = [(d, lane) for d, lanes in enumerate(problem.lane_names) for lane in lanes]
    lanes: dict[str, list[str]] = {lane: [] for _, lane in queues}
    chosen: dict[int, int] = {}
    turn = 0
    for r in range(problem.runs):
        group = problem.group[r]
        if group >= 0 and group in chosen:
            at = chosen[group]
        else:
            at = next(
                k % len(queues)
                for k in range(turn, turn + len(queues))
                if queues[k % len(queues)][0] in problem.allowed[r]
            )
            turn = at + 1
            if group >= 0:
                chosen[group] = at
        lanes[queues[at][1]].append(problem.names[r])
    return Schedule("round_robin", {lane: tuple(names) for lane, names in lanes.items()})
