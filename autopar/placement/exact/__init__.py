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
from ..bounds import lower_bound
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
    bound = min(max(bound, lower_bound(problem), around.length, shared.seconds), best.makespan)
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
    problem: Problem,
    start: Schedule,
    kept: Schedule,
    bound: float,
    *,
    effort: float,
    budget_s: float | None,
) -> Iterator[Schedule]:
    """Schedules that are shorter than `kept` where wires serve first come, first served, sought near `start`.

    The first may have runs that wait for the sake of a wire, which they would not do. If so the others have none, and
    the runs where the first, `start` and `kept` have them. `bound` is one on all schedules. At most `effort` each.
    """
    _require()
    from .serving import first_come, no_pause
    from .solving import Known, solve

    best = Play(problem, Schedule(start.policy, start.lanes))
    below = Play(problem, kept).makespan / (1 + TOLERANCE)
    around = joined(problem, ways(problem, once=True))
    known = Known(best, replace(around, length=max(around.length, bound)), load(problem, around))
    first = solve(problem, known, below, Units(best.makespan, HELD_UNITS), effort, budget_s, (first_come,))
    if not first.schedule:
        return
    yield first.schedule
    promised = Play(problem, first.schedule).makespan
    # Heads and tails in whole units may be a unit longer than the steps that make them, which leaves a pause.
    none = np.where(np.isfinite(around.seconds), 0.0, np.inf)
    spent, seen = first.seconds, set()
    for schedule in (first.schedule, start, kept):
        best = Play(problem, Schedule(start.policy, schedule.lanes))
        if best.makespan <= promised * (1 + TOLERANCE):
            return
        left = None if budget_s is None else budget_s - spent
        if tuple(best.device) in seen or (left is not None and left <= 0):
            continue
        seen.add(tuple(best.device))
        found = solve(
            problem,
            replace(known, best=best, ways=replace(around, head=none, tail=none, length=0.0)),
            below,
            Units(best.makespan, HELD_UNITS),
            effort,
            left,
            (first_come, no_pause),
            placed=True,
        )
        spent += found.seconds
        if found.schedule:
            yield found.schedule
            below = min(below, Play(problem, Schedule(start.policy, found.schedule.lanes)).makespan)


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
