"""A schedule that counts on copies: as if results that are quicker to compute again than to move were everywhere.

Copies are put into schedules whose runs are spread already (`duplicate`), and where moving a result takes longer than
the work that reads it, no schedule without copies spreads that work.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..problem import Problem
from ..simulate import Schedule
from .again import repeatable
from .heft import heft
from .race import Entry, Race


def spread(race: Race) -> Entry | None:
    """The list schedule of the graph in which such results take no bytes, timed with the bytes they take.

    None where there are no such results, or it does not fit or cannot be carried out. It is for `duplicate`, and not
    to be entered: it is rarely any good without copies.
    """
    problem = race.problem
    costed = problem.costed
    light = {
        problem.values[v]
        for r, run in enumerate(costed.runs)
        if problem.makes[r] and repeatable(costed, run)
        for v in problem.makes[r]
        if problem.readers[v]
        and _farthest(problem, v) > min(problem.seconds[r][d] for d in problem.allowed[r])
    }
    if not light:
        return None
    values = tuple(replace(v, bytes=0) if v.name in light else v for v in costed.graph.values)
    lighter = Problem(replace(costed, graph=replace(costed.graph, values=values)))
    entry = race.trial(Schedule("spread", heft(lighter).lanes))
    return entry if entry and not entry.over else None


def _farthest(problem: Problem, v: int) -> float:
    """Seconds that value v takes to the device that is farthest from it."""
    devices = range(len(problem.devices))
    ways = (problem.travel(v, s, d) for s in problem.allowed[problem.maker[v]] for d in devices)
    return max((way for way in ways if way < math.inf), default=0.0)
