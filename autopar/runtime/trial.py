"""`Trial`: a candidate and eager alternate in the caller's own calls; the winner then serves for a period."""

from __future__ import annotations

import math
import statistics
import time

CALLS = 20
"""Counted calls of each; 0: no trial."""
CLEAR = 5
"""Counted calls of each that suffice if every call of one was faster than every call of the other."""
SPAN_S = 0.1
"""Least seconds of calls of each, since a few short calls may all coincide with one disturbance."""
TURN, TURN_S = 5, 0.03
"""Least calls and seconds of one before the turn of the other."""
SETTLE_S = 0.012
"""First seconds of a turn, whose calls are not counted, nor is the first call: caches hold the other's
weights, and the other's idle threads spin, for 10 ms with OpenMP."""
WORTH = 0.03
"""Share of eager's seconds that kernels must save to stay."""
AGAIN = ((1000, 30.0), (10000, 300.0))
"""(calls, seconds) after which the winner is tried again, one pair after the other; then it serves for good.
A trial takes 40 calls or more. Half of them are the slower ones, and each waits for the other's threads."""


class Trial:
    """Trials of a candidate (kernels, a placed model) against eager in the caller's calls, and the periods between
    them. `on`: a trial is being held; false before the first `begin` and while the winner serves."""

    def __init__(self) -> None:
        self.on = False
        self._terms = iter(AGAIN)
        self._left, self._until = math.inf, 0.0

    def begin(self) -> None:
        """Begin a trial."""
        self._candidate: list[float] = []
        self._eager: list[float] = []
        self._turns, self._calls, self._began = 0, 0, 0.0
        self.on = True

    def end(self, again: bool) -> None:
        """End the trial; if `again`, begin a period after which another is due, longer than the one before. The last
        period does not end."""
        self.on = False
        self._left, span_s = next(self._terms, (math.inf, 0.0)) if again else (math.inf, 0.0)
        self._until = time.monotonic() + span_s

    def due(self, calls: int = 1) -> bool:
        """Count calls of the winner; return True if another trial is due."""
        self._left -= calls
        return self._left <= 0 and time.monotonic() >= self._until

    @property
    def candidate_next(self) -> bool:
        """True if the candidate is to serve the next call."""
        return self._turns % 2 == 0

    def note(self, candidate: bool, began: float, ended: float) -> None:
        """Count a call by its times (`time.perf_counter`), except at the start of a turn."""
        if not self._calls:
            self._began = began
        elif began >= self._began + SETTLE_S:
            (self._candidate if candidate else self._eager).append(ended - began)
        self._calls += 1
        if self._calls >= TURN and ended >= self._began + TURN_S:
            self._turns, self._calls = self._turns + 1, 0

    @property
    def over(self) -> bool:
        """True if there were enough calls of each, at the end of a turn."""
        if self._calls:
            return False
        least = min(len(self._candidate), len(self._eager))
        if least >= CALLS:
            return min(sum(self._candidate), sum(self._eager)) >= SPAN_S
        return least >= CLEAR and (
            max(self._candidate) < min(self._eager) or max(self._eager) < min(self._candidate)
        )

    @property
    def ratio(self) -> float:
        """The median call of the candidate divided by that of eager."""
        return statistics.median(self._candidate) / statistics.median(self._eager)
