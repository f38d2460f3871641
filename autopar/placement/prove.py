"""Prove a small plan the shortest, or find a shorter one, where OR-tools is installed."""

from __future__ import annotations

import math
import time
from importlib.util import find_spec

from .exact import TOLERANCE, exact
from .race import Entry, Race

RUNS = 60
"""Runs of the largest graph that is worth the effort."""
TRIED = 4.0
"""Effort spent on one graph at most: some fifteen seconds of a core."""


def prove(
    race: Race, chosen: Entry, bound: float, until: float, effort: float = TRIED
) -> tuple[Entry, float]:
    """The shortest plan found, and a bound that holds for plans that do every run once (0: none sought), in seconds.

    `until` is a time of the monotonic clock. Nothing is tried where OR-tools is missing, the graph is large or has
    runs that may take several lanes, or `bound` is reached.
    """
    left = until - time.monotonic()
    small = 0 < race.problem.runs <= RUNS and not race.problem.modes
    if not small or left <= 0 or chosen.makespan <= bound * (1 + TOLERANCE) or not find_spec("ortools"):
        return chosen, 0.0
    found = exact(race.problem, chosen.schedule, effort=effort, budget_s=None if left == math.inf else left)
    if found.makespan < chosen.makespan:
        race.enter(found.schedule)
        chosen = race.best()
    return chosen, found.lower_bound
