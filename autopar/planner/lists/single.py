"""Everything on one device: the plan to beat."""

from __future__ import annotations

from ...ir.costed import CostedGraph
from ..candidates import Race
from ..model.problem import Problem
from ..model.simulator import Schedule
from .heft import list_schedule
from .ranking import urgent_first


def single(problem: Problem, device: int) -> list[Schedule]:
    """Schedules with all runs on `device`: on one queue, and over all its queues when there are several.

    Runs that cannot run there go where they end first (`is_single` says whether there are any).
    """
    policy = f"single {problem.devices[device]}"
    found = []
    allowed = [(device,) if device in problem.allowed[r] else problem.allowed[r] for r in range(problem.runs)]
    if is_single(problem, device):
        found.append(Schedule(policy, {problem.lane_names[device][0]: problem.names}))
    if not found or len(problem.lane_names[device]) > 1:
        found.append(list_schedule(problem, policy, urgent_first(problem), allowed=allowed))
    return found


def is_single(problem: Problem, device: int) -> bool:
    """Whether every run can run on `device`."""
    return all(device in allowed for allowed in problem.allowed)


def alone(costed: CostedGraph, device: str) -> float | None:
    """The seconds of a costed graph with all runs on a device; None where one cannot run there or it does not fit."""
    problem = Problem(costed)
    d = costed.index[device]
    if not is_single(problem, d):
        return None
    race = Race(problem)
    entries = [race.enter(schedule) for schedule in single(problem, d)]
    return min((entry.makespan for entry in entries if entry and not entry.over), default=None)
