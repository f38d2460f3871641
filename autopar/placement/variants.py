"""List schedules under several weights: what there is time for on graphs that are too large to search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..problem import Problem
from ..simulate import Schedule
from .heft import heft, list_schedule
from .nondelay import crowded
from .rank import cost_to_go, mean_first

LARGE = 500
"""Runs from which on these are tried."""
WEIGHTS = (
    (0.5, 0.0, 0.1),
    (0.0, 0.25, 0.0),
    (0.5, 0.5, 0.3),
    (1.0, 1.0, 0.1),
    (0.5, 0.25, 0.0),
    (0.5, 0.5, 0.0),
    (1.0, 0.5, 0.3),
    (0.0, 1.0, 0.0),
)
"""Weights of copies in the rank, of what follows in where a run goes, and of the copies it needs there: of all from
0 to 1, those that together did best on random graphs, the best first."""
CROWDED = (
    (0.0, 0.5, 0.1),
    (0.5, 0.25, 0.6),
    (0.0, 0.25, 0.0),
    (0.5, 0.5, 0.1),
    (1.0, 0.5, 0.6),
    (0.0, 0.5, 0.3),
)
"""The same where wires serve first come, first served: there a copy costs those behind it too."""
DEVICES = 16
"""Devices looked at for each run in all variants together."""
READS = 52
"""The same where wires serve first come, first served, and each device counts once more for each value that is read."""
APART = 40
"""The same where copies never wait for each other, which makes a list schedule quick and where it goes matter more."""


def variants(problem: Problem) -> list[Callable[..., Schedule]]:
    """Functions `(problem, room=1.0) -> Schedule`, as many as there is time for: fewer on more devices."""
    served = crowded(problem)
    each = float(len(problem.devices))
    looks = DEVICES if problem.copy_lanes or problem.wires else APART
    if served:
        looks, each = READS, each * (1 + sum(map(len, problem.reads)) / max(1, problem.runs))
    count = max(1, round(looks / each))
    found: list[Callable[..., Schedule]] = [] if served else [heft]
    to_go = cost_to_go(problem)
    for rank, ahead, stay in (CROWDED if served else WEIGHTS)[:count]:
        name = f"heft, weights {rank:g} {ahead:g} {stay:g}"
        order = mean_first(problem, rank)
        own = partial(
            list_schedule, policy=name, order=order, to_go=to_go if ahead else None, ahead=ahead, stay=stay
        )
        found.append(partial(own, hold=not served))
    return found
