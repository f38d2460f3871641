"""Local improvement: move runs of the critical path to other devices while that shortens the plan."""

from __future__ import annotations

from collections.abc import Iterator

from ..plans import Placed
from ..problem import Problem
from ..simulate import Timing
from .heft import list_schedule
from .race import Entry, Race
from .rank import order_of, upward_rank

STEPS = 20_000
"""Runs placed in all; the search is counted in these, never in seconds, so that it always ends alike."""
TRIES = 100


def improve(race: Race, start: Entry, bound: float) -> None:
    """Enter what can be reached from `start` by moving one critical run, or colocate group, at a time."""
    problem = race.problem
    if not problem.runs or len(problem.devices) < 2:
        return
    tries = min(TRIES, STEPS // problem.runs)
    order = order_of(upward_rank(problem, "speed"))
    current = start
    seen: set[tuple[int, ...]] = set()
    while tries > 0 and current.timing.makespan > bound * 1.01:
        better = None
        for placement in _moves(problem, current.timing):
            if placement in seen:
                continue
            seen.add(placement)
            tries -= 1
            allowed = [(d,) for d in placement]
            entry = race.trial(list_schedule(problem, "local search", order, allowed=allowed))
            if entry and not entry.over and entry.timing.makespan < current.timing.makespan * (1 - 1e-6):
                better = entry
                break
            if tries <= 0:
                break
        if better is None:
            break
        current = better
    if current is not start:
        race.admit(current)


def _moves(problem: Problem, timing: Timing) -> Iterator[tuple[int, ...]]:
    """The devices of all runs, with one critical run or its group elsewhere, latest first."""
    index = problem.costed.index
    device = [0] * problem.runs
    for placed in timing.placed:
        device[problem.number[placed.run]] = index[placed.device]
    for name in critical(timing):
        r = problem.number[name]
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else [r]
        for d in problem.allowed[r]:
            if d != device[r]:
                moved = list(device)
                for member in together:
                    moved[member] = d
                yield tuple(moved)


def critical(timing: Timing) -> list[str]:
    """Runs of a chain of steps without a pause that ends when the plan does, from its end."""
    steps = sorted((*timing.placed, *timing.transfers), key=lambda step: (step.end, step.start))
    ends: dict[float, list[int]] = {}
    for position, step in enumerate(steps):
        ends.setdefault(step.end, []).append(position)
    found: list[str] = []
    position = len(steps) - 1
    while position >= 0:
        step = steps[position]
        if isinstance(step, Placed):
            found.append(step.run)
        position = next((p for p in reversed(ends.get(step.start, ())) if p < position), -1)
    return found
