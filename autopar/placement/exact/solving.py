"""One call of the solver: a model of a problem, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from ...problem import Problem
from ...simulate import Play, Schedule
from ..bounds.load import Load
from ..bounds.ways import Ways
from .caps import cap
from .model import Model
from .prices import price
from .reading import read
from .transfers import Transfers
from .units import Units

Rule = Callable[[Model, Transfers], None]
"""What else a schedule must keep to."""


@dataclass(frozen=True)
class Known:
    """What is known before: the best schedule, simulated; heads and tails; the load and its prices."""

    best: Play
    ways: Ways
    load: Load


@dataclass(frozen=True)
class Solved:
    """`schedule` (None: none found), seconds below which there is none, and what was spent: effort and seconds."""

    schedule: Schedule | None
    bound: float
    effort: float
    seconds: float


def solve(
    problem: Problem,
    known: Known,
    below: float,
    units: Units,
    effort: float,
    budget_s: float | None = None,
    rules: Iterable[Rule] = (),
    placed: bool = False,
) -> Solved:
    """Look for the shortest schedule of at most `below` seconds that keeps to `rules`.

    With `placed` every run stays where it is in the best schedule known. Deterministic unless `budget_s` is reached.
    """
    aim = units.floor(below)
    model = Model(problem, units, known.best, known.ways, aim, placed)
    transfers = Transfers(model)
    model.limit()
    price(model, known.load)
    if problem.tight:
        cap(model, transfers)
    for rule in rules:
        rule(model, transfers)
    solver = cp_model.CpSolver()
    _configure(solver.parameters, effort, budget_s)
    status = solver.solve(model.cp)
    spent, seconds = solver.response_proto.deterministic_time, solver.wall_time
    if status == cp_model.INFEASIBLE:
        return Solved(None, units.seconds(aim + 1), spent, seconds)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = min(max(model.floor, round(solver.best_objective_bound)), aim + 1)
    return Solved(read(model, transfers, solver) if found else None, units.seconds(bound), spent, seconds)


def _configure(parameters: Any, effort: float, budget_s: float | None) -> None:
    parameters.random_seed = 0
    parameters.max_deterministic_time = effort
    if budget_s is not None:
        parameters.max_time_in_seconds = budget_s
    # Clauses learnt from conflicts prove these schedules; the linear relaxation costs more than it tells.
    parameters.num_workers = 1
    parameters.linearization_level = 0
