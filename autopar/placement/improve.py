"""Local improvement: move runs of the critical path to other devices while that shortens the plan."""

from __future__ import annotations

from collections.abc import Iterator

from ..problem import Problem
from ..simulate import Play
from .heft import list_schedule
from .race import Entry, Race
from .rank import urgent_first

STEPS = 20_000
"""Runs placed in all; the search is counted in these, never in seconds, so that it always ends alike."""
TRIES = 100
FEWEST = 10
"""Tries below which it is not worth beginning."""


def improve(race: Race, start: Entry, bound: float) -> None:
    """Enter what can be reached from `start` by moving one critical run, or colocate group, at a time."""
    problem = race.problem
    if not problem.runs or len(problem.devices) < 2:
        return
    tries = min(TRIES, STEPS // problem.runs)
    if tries < FEWEST:
        return
    order = urgent_first(problem)
    current = start
    seen: set[tuple[int, ...]] = set()
    while tries > 0 and current.makespan > bound * 1.01:
        better = None
        for placement in _moves(problem, current.play):
            if placement in seen:
                continue
            seen.add(placement)
            tries -= 1
            allowed = [(d,) for d in placement]
            entry = race.trial(list_schedule(problem, "local search", order, allowed=allowed))
            if entry and not entry.over and entry.makespan < current.makespan * (1 - 1e-6):
                better = entry
                break
            if tries <= 0:
                break
        if better is None:
            break
        current = better
    if current is not start:
        race.admit(current)


def _moves(problem: Problem, play: Play) -> Iterator[tuple[int, ...]]:
    """The devices of all runs, with one critical run or its group elsewhere, latest first."""
    for r in critical(play):
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else [r]
        for d in problem.allowed[r]:
            if d != play.device[r]:
                moved = list(play.device)
                for member in together:
                    moved[member] = d
                yield tuple(moved)


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
