"""Fill one device after the other, for graphs that hardly fit."""

from __future__ import annotations

from ..problem import Problem
from ..simulate import Schedule
from .room import Room


def fill(problem: Problem, room: float = 1.0) -> Schedule:
    """Runs in graph order on the device with most room left, until the next does not fit there any more.

    Neighbours stay together, so that little is copied and little is alive twice; times play no part.
    """
    space = Room(problem, room)
    there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
    lanes: dict[str, list[str]] = {names[0]: [] for names in problem.lane_names}
    chosen: dict[int, int] = {}
    current = max(range(len(problem.devices)), key=lambda d: (space.caps[d] - space.used[d], -d))
    for r in range(problem.runs):
        group = problem.group[r]
        allowed = (chosen[group],) if group in chosen else problem.allowed[r]
        able = space.fitting(r, allowed, there)
        if current not in able:
            current = max(able, key=lambda d: (space.caps[d] - space.used[d], -d))
        if group >= 0:
            chosen[group] = current
        for v in problem.reads[r]:
            if current not in there[v]:
                there[v][current] = 0.0
                space.copy(v, current)
        space.settle(r, current, there)
        for v in problem.makes[r]:
            there[v][current] = 0.0
        lanes[problem.lane_names[current][0]].append(problem.names[r])
    return Schedule("fill", {lane: tuple(names) for lane, names in lanes.items()})
