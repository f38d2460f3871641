"""Seconds as whole numbers, so that no bound found with them can be too high."""

from __future__ import annotations

import math


class Units:
    """A length of `unit` seconds counts as one; every duration is rounded down.

    A schedule in seconds then maps, its starts rounded down too, to one in units that keeps every constraint and
    is not longer: floor(s) + floor(p) ≤ floor(s + p). So the optimum in units is a bound on that in seconds.
    """

    def __init__(self, horizon: float, count: int) -> None:
        self.unit = horizon / count
        self.horizon = self.ceil(horizon)

    def floor(self, seconds: float) -> int:
        """Whole units in some seconds, a hair's breadth below them counting as them. What is longer than the horizon
        counts as one more than that, as the solver takes no larger numbers."""
        return math.floor(min(seconds / self.unit * (1 + 1e-12), self.horizon + 1))

    def ceil(self, seconds: float) -> int:
        """Units that cover some seconds."""
        return math.ceil(seconds / self.unit * (1 - 1e-12))

    def seconds(self, units: int) -> float:
        """Units in seconds."""
        return units * self.unit
