"""`Trial`: kernels and eager in turns in the caller's own calls, where the race that chose them may have misled."""

from __future__ import annotations

import statistics

CALLS = 20
"""Counted calls of each; 0 for no trial."""
CLEAR = 5
"""The same where each call of one was quicker than every call of the other."""
SPAN_S = 0.1
"""Seconds of calls of each, at the least: a few short calls may all fall beside the same disturbance."""
RUN = 5
"""Calls of one before the turn of the other. The first is not counted: caches hold the other's weights, and the
other's threads may spin."""
WORTH = 0.03
"""Share of eager's seconds that kernels must save to stay."""
AGAIN = (100, 1000, 10000)
"""Calls served by kernels after which another trial is held, one number after the other."""


class Trial:
    """Seconds of the caller's calls, by whether kernels or eager served them."""

    def __init__(self) -> None:
        self._kernels: list[float] = []
        self._eager: list[float] = []
        self._served = 0

    @property
    def kernels_next(self) -> bool:
        """True if kernels are to serve the next call."""
        return self._served // RUN % 2 == 0

    def note(self, kernels: bool, seconds: float) -> None:
        """Count a call; not the first of a turn."""
        if self._served % RUN:
            (self._kernels if kernels else self._eager).append(seconds)
        self._served += 1

    @property
    def over(self) -> bool:
        """True if there were enough calls of each."""
        least = min(len(self._kernels), len(self._eager))
        if least >= CALLS:
            return min(sum(self._kernels), sum(self._eager)) >= SPAN_S
        return least >= CLEAR and (
            max(self._kernels) < min(self._eager) or max(self._eager) < min(self._kernels)
        )

    @property
    def ratio(self) -> float:
        """The median call of the kernels ÷ that of eager."""
        return statistics.median(self._kernels) / statistics.median(self._eager)
