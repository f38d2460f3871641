"""The shortest schedule there is, with a proof, by constraint programming (OR-tools CP-SAT): small graphs.

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23,
2018), transfers as intervals of their wires, and what `bounds` knows of heads, tails and loads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...errors import PlanError
from ...liveness import memory
from ...problem import Problem
from ...simulate import Play, Schedule
from ..bounds import lower_bound
from ..bounds.ways import ways
from .units import Units

EFFORT = 6.0
"""What the solver may spend, in its own deterministic time: some twenty seconds of a core."""
STAGES = ((10_000, 0.7), (1_000_000, 1.0))
"""Units that the best known schedule is long, and the share of what is left to be spent with them: few make the solver
quick, and what it then finds leaves little to prove with many."""
TOLERANCE = 1e-4
"""Share of the makespan below which two schedules are taken to be as long: the solver counts in whole units."""


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
    problem: Problem, start: Schedule, *, effort: float = EFFORT, budget_s: float | None = None
) -> Exact:
    """Improve `start`, which must fit, until it is proven that nothing is shorter or `effort` is spent.

    The bound holds for schedules that do every run once. `budget_s` is a ceiling in seconds. The model has a variable
    for each run, and each value, on each device: it is for up to some hundreds of runs. Raises PlanError where OR-tools
    is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise PlanError(
            "OR-tools, with which plans are proven optimal, is not installed; type: pip install 'autopar[exact]'"
        ) from None
    from .caps import cap
    from .model import Model
    from .reading import read
    from .transfers import Transfers

    schedule, best = start, Play(problem, start)
    around = ways(problem, once=True)
    bound = min(max(lower_bound(problem), around.length), best.makespan)
    left, seconds = effort, 0.0
    for count, share in STAGES:
        if best.makespan <= bound * (1 + TOLERANCE) or (budget_s is not None and seconds >= budget_s):
            break
        units = Units(best.makespan, count)
        model = Model(problem, units, best, replace(around, length=bound))
        transfers = Transfers(model)
        model.limit()
        if problem.tight:
            cap(model, transfers)
        solver = cp_model.CpSolver()
        _configure(solver.parameters, left * share, None if budget_s is None else budget_s - seconds)
        status = solver.solve(model.cp)
        left -= solver.response_proto.deterministic_time
        seconds += solver.wall_time
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            bound = max(bound, units.seconds(round(solver.best_objective_bound)))
            found = read(model, transfers, solver)
            play = Play(problem, found)
            if play.makespan < best.makespan and _fits(problem, play):
                schedule, best = found, play
    optimal = best.makespan <= bound * (1 + TOLERANCE)
    timed = budget_s is not None and not optimal and seconds >= budget_s
    return Exact(schedule, best.makespan, min(bound, best.makespan), optimal, effort - left, timed)


def _fits(problem: Problem, play: Play) -> bool:
    used = memory(problem, play) if problem.tight else ()
    return all(one.cap is None or one.peak <= one.cap for one in used)


def _configure(parameters: Any, effort: float, budget_s: float | None) -> None:
    parameters.random_seed = 0
    parameters.max_deterministic_time = effort
    if budget_s is not None:
        parameters.max_time_in_seconds = budget_s
    # Clauses learnt from conflicts prove these schedules; the linear relaxation costs more than it tells.
    parameters.num_workers = 1
    parameters.linearization_level = 0
