"""When the lanes, queues and wires of a finished plan are idle, and what would fit there."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]

ROUNDING = 1e-12
"""Share of a moment by which what ends there may reach into what begins there."""


class Gaps:
    """Gaps between the intervals in which one resource is busy, in order; the last never ends."""

    def __init__(self, busy: Iterable[Interval]) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        at = 0.0
        for start, end in sorted(busy):
            if end <= start:
                continue
            if start > at:
                self.starts.append(at)
                self.ends.append(start)
            at = max(at, end)
        self.starts.append(at)
        self.ends.append(math.inf)

    def find(self, ready: float, length: float, freed: Sequence[Interval] = ()) -> float:
        """The earliest start ≥ `ready` at which `length` seconds are free, were the intervals `freed` idle too."""
        gap = bisect_right(self.ends, ready)
        while max(ready, self.starts[gap]) + length > self.ends[gap] * (1 + ROUNDING):
            gap += 1
        found = max(ready, self.starts[gap])
        for start, end in self._widened(freed):
            if max(ready, start) + length <= end * (1 + ROUNDING):
                found = min(found, max(ready, start))
        return found

    def _widened(self, freed: Sequence[Interval]) -> list[Interval]:
        """Freed intervals with the gaps beside them, those that touch as one."""
        merged: list[Interval] = []
        for start, end in sorted(freed):
            before, after = bisect_right(self.ends, start) - 1, bisect_right(self.starts, end) - 1
            if before >= 0 and self.ends[before] == start:
                start = self.starts[before]
            if after >= 0 and self.starts[after] == end:
                end = self.ends[after]
            if merged and start <= merged[-1][1]:
                start, end = merged[-1][0], max(end, merged[-1][1])
                merged.pop()
            merged.append((start, end))
        return merged


def find_all(
    resources: Sequence[tuple[Gaps, Sequence[Interval]]], ready: float, length: float, count: int = 0
) -> float:
    """The earliest start ≥ `ready` at which `count` of the resources (0: all) are free together for `length` seconds;
    of each its gaps and what was freed of it."""
    wanted = count or len(resources)
    start = ready
    while wanted:
        found = sorted(gaps.find(start, length, freed) for gaps, freed in resources)[wanted - 1]
        if found == start:
            break
        start = found
    return start
