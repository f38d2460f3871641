"""The shortest schedule there is, with a proof, by constraint programming (OR-tools CP-SAT): small graphs.

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23,
2018), transfers as intervals of their wires, and what `bounds`, `joins` and `windows` know of heads, tails and loads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...errors import PlanError
from ..bounds.critical_path import ways
from ..bounds.load import load
from ..model.problem import Problem
from ..model.simulator import Play, Schedule
from .joins import joined
from .result import (
    EFFORT,
    FIRST,
    HELD_CLOSE,
    HELD_ROUNDS,
    HELD_UNITS,
    LONGER,
    NARROWING,
    NEXT,
    TOLERANCE,
    Exact,
)
from .units import Units


def exact(
    problem: Problem,
    start: Schedule,
    *,
    effort: float = EFFORT,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Exact:
    """Improve `start`, which must fit, until it is proven that nothing is shorter: the last of `proofs`."""
    *_, last = proofs(problem, start, effort=effort, budget_s=budget_s, bound=bound)
    return last


def proofs(
    problem: Problem,
    start: Schedule,
    *,
    effort: float = EFFORT,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Iterator[Exact]:
    """Improve `start`, which must fit, until it is proven that nothing is shorter or `effort` is spent.

    What is known after each step: a short one first, then one for heads and tails, then longer ones. The bound holds
    for schedules that do every run once; `bound` is one that is known. `budget_s` is a ceiling in seconds. The model
    has a variable for each run, and each value, on each device: it is for up to some hundreds of runs. Raises
    PlanError where OR-tools is not installed.
    """
    _require()
    from .proof import Proof

    proof = Proof(problem, start, bound, effort, budget_s)
    step = NEXT
    proof.solve(FIRST)
    yield proof.known()
    if proof.going:
        proof.narrow(NARROWING)
        yield proof.known()
    while proof.going:
        proof.solve(step)
        yield proof.known()
        step *= LONGER


def held(
    problem: Problem, start: Schedule, below: float, bound: float, *, effort: float, budget_s: float | None
) -> Iterator[Schedule]:
    """Schedules of less than `below` seconds where wires serve first come, first served, sought near `start`.

    Each may have runs that wait for the sake of a wire, which they would not do; then one follows that has none and the
    same placement, and then another placement, until a schedule keeps what was promised or `effort` is spent. `bound`
    is one on all schedules, `budget_s` a ceiling in seconds.
    """
    _require()
    from .fifo import elsewhere, first_come, no_pause
    from .solve import Known, Rule, solve

    began = time.monotonic()
    until = math.inf if budget_s is None else began + budget_s
    around = joined(problem, ways(problem, once=True))
    none = np.where(np.isfinite(around.seconds), 0.0, np.inf)
    known = Known(
        _served(problem, start), replace(around, length=max(around.length, bound)), load(problem, around)
    )
    # Heads and tails in whole units may be a unit longer than the steps that make them, which leaves a pause.
    loose = replace(around, head=none, tail=none, length=0.0)
    last = until - (time.monotonic() - began)
    tried: list[list[int]] = []

    def ask(known: Known, *rules: Rule, placed: bool = False) -> Schedule | None:
        nonlocal effort
        units = Units(known.best.makespan, HELD_UNITS)
        found = solve(problem, known, below / (1 + TOLERANCE), units, effort / 2, until, rules, placed)
        effort -= found.effort
        return found.schedule

    for _ in range(HELD_ROUNDS):
        if effort <= 0 or time.monotonic() >= last:
            return
        first = ask(known, first_come, elsewhere(tried))
        if not first:
            return
        yield first
        promised = Play(problem, first).makespan
        known = replace(known, best=_served(problem, first))
        tried.append(known.best.device)
        if known.best.makespan > promised * (1 + HELD_CLOSE):
            second = ask(replace(known, ways=loose), first_come, no_pause, placed=True)
            if second:
                yield second
                known = replace(known, best=_served(problem, second))
        below = min(below, known.best.makespan)
        if below <= promised * (1 + HELD_CLOSE):
            return


def _served(problem: Problem, schedule: Schedule) -> Play:
    """A schedule whose wires serve first come, first served."""
    return Play(problem, replace(schedule, first_come=True))


def _require() -> None:
    try:
        import ortools.sat.python.cp_model  # noqa: F401
    except ImportError:
        raise PlanError(
            "OR-tools, with which plans are proven optimal, is not installed; type: pip install 'autopar[exact]'"
        ) from None
