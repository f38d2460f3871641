"""Local improvement: move one run at a time while that shortens the plan, or first makes it fit."""

from __future__ import annotations

from collections.abc import Iterator

from ..candidates import SHORTER, Entry, Race
from ..lists.heft import list_schedule
from ..lists.ranking import urgent_first
from ..model.problem import Problem
from ..model.simulator import Play

STEPS = 20_000
"""Runs placed in all: the search is counted in these, never in seconds, so that it always ends alike."""
TRIES = 100
FEWEST = 20
"""Tries below which it is not worth beginning."""
CLOSE = 0.01
"""Share above the lower bound at which a plan is left as it is."""


def improve(race: Race, start: Entry, bound: float) -> None:
    """Enter the best that is reached from `start` by moving one run, or colocate group, at a time.

    Runs of the critical path are moved, or, while the plan does not fit, runs of the devices that are too
    full.
    """
    problem = race.problem
    if not problem.runs or len(problem.devices) < 2:
        return
    tries = min(TRIES, STEPS // problem.runs)
    if tries < FEWEST:
        return
    order = urgent_first(problem)
    current = start
    seen = {tuple(current.play.device)}
    while tries > 0 and (current.over or current.makespan > bound * (1 + CLOSE)):
        better = None
        for placement in _moves(problem, current):
            if placement in seen:
                continue
            seen.add(placement)
            tries -= 1
            entry = race.trial(
                list_schedule(problem, "local search", order, allowed=[(d,) for d in placement])
            )
            if entry and _shorter(entry, current):
                better = entry
            if better or tries <= 0:
                break
        if better is None:
            break
        current = better
    if current is not start:
        race.admit(current)


def _shorter(one: Entry, other: Entry) -> bool:
    return (one.excess, one.makespan) < (other.excess, other.makespan * (1 - SHORTER))


def _moves(problem: Problem, entry: Entry) -> Iterator[tuple[int, ...]]:
    """The devices of all runs, with one run or its group elsewhere: the latest or the largest first."""
    device = entry.play.device
    for r in _crowded(problem, entry) if entry.over else critical(entry.play):
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else [r]
        for d in problem.allowed[r]:
            if d != device[r]:
                moved = list(device)
                for member in together:
                    moved[member] = d
                yield tuple(moved)


def _crowded(problem: Problem, entry: Entry) -> list[int]:
    """Runs on devices that are too full, those that take most memory first."""
    full = {problem.costed.index[device] for device, _, _ in entry.over}

    def weight(r: int) -> int:
        values = (*problem.reads[r], *problem.makes[r])
        return sum(nbytes for _, nbytes in problem.kept[r]) + sum(problem.bytes[v] for v in values)

    return sorted(
        (r for r in range(problem.runs) if entry.play.device[r] in full), key=lambda r: (-weight(r), r)
    )


def critical(play: Play) -> list[int]:
    """Runs of a chain of steps without a pause that ends when the plan does, from its end."""
    steps = sorted(range(len(play.end)), key=lambda step: (play.end[step], play.start[step], step))
    ends: dict[float, list[int]] = {}
    for position, step in enumerate(steps):
        ends.setdefault(play.end[step], []).append(position)
    found: list[int] = []
    position = len(steps) - 1
    while position >= 0:
        step = steps[position]
        if step < play.problem.runs:
            found.append(step)
        position = next((p for p in reversed(ends.get(play.start[step], ())) if p < position), -1)
    return found
