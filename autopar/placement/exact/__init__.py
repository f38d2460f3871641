"""The shortest schedule there is, with a proof, by constraint programming (OR-tools CP-SAT): small graphs.

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23,
2018), transfers as intervals of their wires, and what `bounds` and `joins` know of heads, tails and loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ...liveness import memory
from ...problem import Problem
from ...simulate import Play, Schedule
from ..bounds import lower_bound, sound
from ..bounds.load import load
from ..bounds.ways import ways
from .joins import joined
from .units import Units

EFFORT = 6.0
"""What the solver may spend, in its own deterministic time: a minute of a core at most."""
STAGES = ((10_000, 0.7), (100_000, 1.0))
"""Units that the best known schedule is long, and the share of what is left to be spent with them: few make the solver
quick, and what it then finds leaves little to prove with many. A million made it count for half a minute unseen."""
TOLERANCE = 2e-4
"""Share of the makespan below which two schedules are taken to be as long: the solver counts in whole units."""
HELD_UNITS = 100_000
"""Units of a schedule whose wires serve first come, first served: one pass, as nothing is proven by it."""
HELD_CLOSE = 2e-3
"""Share above what was promised at which such a schedule is taken to keep it."""
HELD_ROUNDS = 4
"""Placements tried for such a schedule at most."""


@dataclass(frozen=True)
class Exact:
    """The best schedule found, its makespan in `simulate`, and a bound below which there is none, in seconds.

    `optimal`: the makespan is that of the bound, to within `TOLERANCE`. `effort` is what was spent of it. `stopped`:
    the ceiling in seconds cut it short, so that another run may find something else.
    """

    schedule: Schedule
    makespan: float
    lower_bound: float
    optimal: bool
    effort: float
    stopped: bool = False


def exact(
    problem: Problem,
    start: Schedule,
    *,
    effort: float = EFFORT,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Exact:
    """Improve `start`, which must fit, until it is proven that nothing is shorter or `effort` is spent.

    The bound holds for schedules that do every run once; `bound` is one that is known. `budget_s` is a ceiling in
    seconds. The model has a variable for each run, and each value, on each device: it is for up to some hundreds of
    runs. Raises PlanError where OR-tools is not installed.
    """
    _require()
    from .solving import Known, solve

    schedule, best = start, Play(problem, start)
    around = joined(problem, ways(problem, once=True))
    shared = load(problem, around)
    bound = sound(max(bound, lower_bound(problem), around.length, shared.seconds), best.makespan)
    left, seconds = effort, 0.0
    for count, share in STAGES:
        if best.makespan <= bound * (1 + TOLERANCE) or (budget_s is not None and seconds >= budget_s):
            break
        found = solve(
            problem,
            Known(best, replace(around, length=bound), shared),
            best.makespan / (1 + TOLERANCE),
            Units(best.makespan, count),
            left * share,
            None if budget_s is None else budget_s - seconds,
        )
        left -= found.effort
        seconds += found.seconds
        bound = min(max(bound, found.bound), best.makespan)
        if found.schedule:
            play = Play(problem, found.schedule)
            if play.makespan < best.makespan and _fits(problem, play):
                schedule, best = found.schedule, play
    optimal = best.makespan <= bound * (1 + TOLERANCE)
    timed = budget_s is not None and not optimal and seconds >= budget_s
    return Exact(schedule, best.makespan, min(bound, best.makespan), optimal, effort - left, timed)


def held(
    problem: Problem, start: Schedule, below: float, bound: float, *, effort: float, budget_s: float | None
) -> Iterator[Schedule]:
    """Schedules of less than `below` seconds where wires serve first come, first served, sought near `start`.

    Each may have runs that wait for the sake of a wire, which they would not do; then one follows that has none and the
    same placement, and then another placement, until a schedule keeps what was promised or `effort` is spent. `bound`
    is one on all schedules, `budget_s` a ceiling in seconds.
    """
    _require()
    from .serving import elsewhere, first_come, no_pause
    from .solving import Known, Rule, solve

    around = joined(problem, ways(problem, once=True))
    none = np.where(np.isfinite(around.seconds), 0.0, np.inf)
    known = Known(
        _served(problem, start), replace(around, length=max(around.length, bound)), load(problem, around)
    )
    # Heads and tails in whole units may be a unit longer than the steps that make them, which leaves a pause.
    loose = replace(around, head=none, tail=none, length=0.0)
    tried: list[list[int]] = []
    seconds = 0.0

    def ask(known: Known, *rules: Rule, placed: bool = False) -> Schedule | None:
        nonlocal effort, seconds
        left = None if budget_s is None else max(0.0, budget_s - seconds)
        units = Units(known.best.makespan, HELD_UNITS)
        found = solve(problem, known, below / (1 + TOLERANCE), units, effort / 2, left, rules, placed)
        effort, seconds = effort - found.effort, seconds + found.seconds
        return found.schedule

    for _ in range(HELD_ROUNDS):
        if effort <= 0 or (budget_s is not None and seconds >= budget_s):
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
    return Play(problem, Schedule(schedule.policy, schedule.lanes))


def _require() -> None:
    try:
        import ortools.sat.python.cp_model  # noqa: F401
    except ImportError:
        raise PlanError(
            "OR-tools, with which plans are proven optimal, is not installed; type: pip install 'autopar[exact]'"
        ) from None


def _fits(problem: Problem, play: Play) -> bool:
    used = memory(problem, play) if problem.tight else ()
    return all(one.cap is None or one.peak <= one.cap for one in used)
