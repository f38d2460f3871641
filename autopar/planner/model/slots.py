"""Free time of one resource (lane, queue, bus or host), for insertion into gaps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

REMEMBERED = 64
"""Gaps kept; older ones are dropped, so that a reservation takes constant time."""


class Slots:
    """Gaps in time, in order, between the busy spans (start, end); the last one never ends."""

    __slots__ = ("ends", "starts")

    def __init__(self, busy: Iterable[tuple[float, float]] = ()) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        at = 0.0
        for start, end in sorted(busy):
            if start > at and end > start:
                self.starts.append(at)
                self.ends.append(start)
            at = max(at, end)
        self.starts.append(at)
        self.ends.append(math.inf)

    def find(self, ready: float, length: float) -> float:
        """Return the earliest start ≥ `ready` with `length` free seconds."""
        starts, ends = self.starts, self.ends
        if ready >= starts[-1]:
            return ready
        gap = bisect_right(ends, ready)
        while True:
            start = starts[gap]
            if start < ready:
                start = ready
            if start + length <= ends[gap]:
                return start
            gap += 1

    def take(self, start: float, length: float) -> None:
        """Reserve `length` seconds from `start`, which `find` returned."""
        if length <= 0:
            return
        starts, ends = self.starts, self.ends
        end = start + length
        # Most reservations are in the last gap.
        gap = len(starts) - 1 if start >= starts[-1] else bisect_right(starts, start) - 1
        last = ends[gap]
        if end < last:
            if start > starts[gap]:
                ends[gap] = start
                starts.insert(gap + 1, end)
                ends.insert(gap + 1, last)
                if len(starts) > REMEMBERED:
                    del starts[0], ends[0]
            else:
                starts[gap] = end
        elif start > starts[gap]:
            ends[gap] = start
        else:
            del starts[gap], ends[gap]


def find_all(resources: Sequence[tuple[Slots, float]], ready: float) -> float:
    """Return the earliest start ≥ `ready` at which each resource is free for its own length in seconds."""
    while True:
        start = max((slots.find(ready, length) for slots, length in resources), default=ready)
        if start == ready:
            return start
        ready = start
