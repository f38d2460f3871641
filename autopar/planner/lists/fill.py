"""Fill one device after the other, for graphs that hardly fit."""

from __future__ import annotations

from ..model.problem import Problem
from ..model.simulator import Schedule
from .layouts import Laid


def fill(problem: Problem, room: float = 1.0) -> Schedule:
    """Runs in graph order on the device with most room left, until the next does not fit there any more.

    Neighbours stay together, so that little is copied and little is alive twice; times play no part.
    """
    laid = Laid(problem, room)
    current = laid.roomiest(range(len(problem.devices)))
    for r in range(problem.runs):
        able = laid.able(r)
        if current not in able:
            current = laid.roomiest(able)
        laid.lay(r, current)
    return laid.schedule("fill")
