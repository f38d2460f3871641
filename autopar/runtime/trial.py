"""`Trial`: kernels and eager in turns in the caller's own calls, where the race that chose them may have misled."""

from __future__ import annotations

import statistics

CALLS = 20
"""Calls of each; 0 for no trial."""
CLEAR = 3
"""The same where each call of one was quicker than every call of the other."""


class Trial:
    """Seconds of the caller's calls, by whether kernels or eager served them."""

    def __init__(self) -> None:
        self._kernels: list[float] = []
        self._eager: list[float] = []

    @property
    def kernels_next(self) -> bool:
        """True if kernels are to serve the next call."""
        return len(self._kernels) <= len(self._eager)

    def note(self, kernels: bool, seconds: float) -> None:
        """Count a call."""
        (self._kernels if kernels else self._eager).append(seconds)

    @property
    def over(self) -> bool:
        """True if there were enough calls of each."""
        least = min(len(self._kernels), len(self._eager))
        return least >= CALLS or (
            least >= CLEAR
            and (max(self._kernels) < min(self._eager) or max(self._eager) < min(self._kernels))
        )

    @property
    def ratio(self) -> float:
        """The median call of the kernels ÷ that of eager."""
        return statistics.median(self._kernels) / statistics.median(self._eager)
