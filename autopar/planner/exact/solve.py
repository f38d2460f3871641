"""One call of the solver: a model of a problem, and what becomes of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from ..bounds.critical_path import Ways
from ..bounds.load import Load
from ..model.problem import Problem
from ..model.simulator import Play, Schedule
from .memory import cap
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
    """`schedule` (None: none found), seconds below which there is none, and the effort spent.

    `done`: in whole units of time nothing is left to prove.
    """

    schedule: Schedule | None
    bound: float
    effort: float
    done: bool


def solve(
    problem: Problem,
    known: Known,
    below: float,
    units: Units,
    effort: float,
    until: float = math.inf,
    rules: Iterable[Rule] = (),
    placed: bool = False,
) -> Solved:
    """Look for the shortest schedule of at most `below` seconds that keeps to `rules`.

    With `placed` every run stays where it is in the best schedule known. Deterministic unless `until`, a time of the
    monotonic clock, is reached.
    """
    aim = units.floor(below)
    model = Model(
        problem, units, known.best, known.ways, aim, [(d,) for d in known.best.device] if placed else None
    )
    transfers = Transfers(model)
    model.limit()
    price(model, known.load)
    if problem.tight:
        cap(model, transfers)
    for rule in rules:
        rule(model, transfers)
    own = solver(effort, until)
    status = own.solve(model.cp)
    spent = own.response_proto.deterministic_time
    if status == cp_model.INFEASIBLE:
        return Solved(None, units.seconds(aim + 1), spent, True)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = min(max(model.floor, round(own.best_objective_bound)), aim + 1)
    schedule = read(model, transfers, own) if found else None
    return Solved(schedule, units.seconds(bound), spent, status == cp_model.OPTIMAL)


def solver(effort: float, until: float) -> cp_model.CpSolver:
    """A solver that stops when `effort` is spent, or at a time of the monotonic clock."""
    own = cp_model.CpSolver()
    parameters = own.parameters
    parameters.random_seed = 0
    parameters.max_deterministic_time = effort
    if until < math.inf:
        parameters.max_time_in_seconds = max(0.0, until - time.monotonic())
    # Clauses learnt from conflicts prove these schedules; the linear relaxation costs more than it tells.
    parameters.num_workers = 1
    parameters.linearization_level = 0
    return own
