"""Runs follow the data: for graphs that hardly fit and remember much, as a forward does for its backward."""

from __future__ import annotations

from ..model.problem import Problem
from ..model.simulator import Schedule
from .layouts import Laid


def follow(problem: Problem, room: float = 1.0) -> Schedule:
    """Runs, each just before it is needed, on the device that has most of the bytes they read which were made before;
    of two with as much, on that of the run before: else one device would run ahead of what the other adds up.

    What reads nothing that was made fills one device after the other, each up to `room` of its cap, so that the
    readers of what it makes, which come later, have the rest.
    """
    laid = Laid(problem)
    space, there = laid.space, laid.there
    last = current = laid.roomiest(range(len(problem.devices)))
    for r in just_in_time(problem):
        able = laid.able(r)
        made = [v for v in problem.reads[r] if problem.maker[v] >= 0]
        near = {d: sum(problem.bytes[v] for v in made if d in there[v]) for d in able}
        nearest = max(able, key=lambda d: (near[d], d == last, -d))
        if not near[nearest]:
            free = [d for d in able if space.used[d] + space.need(r, d, there) <= room * space.caps[d]]
            if current not in free:
                current = laid.roomiest(free or able)
            nearest = current
        last = nearest
        laid.lay(r, nearest)
    return laid.schedule("follow")


def just_in_time(problem: Problem) -> list[int]:
    """Runs in an order in which each comes shortly before its first reader: depth first from the last runs, of what a
    run waits for the longest chain first, so that little is alive at once.

    Sethi and Ullman's order for expressions (J. ACM 17(4), 1970) with the length of a chain for its registers.
    """
    depth = [0] * problem.runs
    for r in range(problem.runs):
        depth[r] = 1 + max((depth[p] for p in problem.before[r]), default=0)
    first = [sorted(before, key=lambda p: (-depth[p], p)) for before in problem.before]
    waited = {p for before in problem.before for p in before}
    found: list[int] = []
    seen = [False] * problem.runs
    for last in range(problem.runs):
        stack = [(last, 0)] if last not in waited else []
        while stack:
            r, at = stack.pop()
            if at == 0 and seen[r]:
                continue
            seen[r] = True
            if at < len(first[r]):
                stack += [(r, at + 1), (first[r][at], 0)]
            else:
                found.append(r)
    return found
