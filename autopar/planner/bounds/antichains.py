"""How much must follow each run, or come before it, when all that does shares the machine."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from .critical_path import Floats, Ints

LARGEST = 1_000
"""Runs above which it is not tried: time and memory grow with their square."""


def crowded(
    after: Sequence[Sequence[int]], seconds: Floats, share: Floats, rest: Floats, unit: float = 0.0
) -> Floats:
    """At least the seconds (R) from the end of each run to the end of any schedule, no less than `rest` (R).

    What follows a run and is itself followed by x seconds or more is done before these x, and takes its `share` (R),
    in seconds of the whole machine (Fernandez and Bussell, IEEE Transactions on Computers 22(8), 1973, for the
    successors of each run). `seconds` (R) are those of a run where it is quickest; all is rounded up to whole `unit`s
    where that is not 0. With what comes before for `after` and heads for `rest`: the seconds before each run can
    start. Vectorised; O(R²) in all.
    """
    before: list[list[int]] = [[] for _ in after]
    for r, later in enumerate(after):
        for follower in later:
            before[follower].append(r)
    above = _above(before)
    left, found = [len(later) for later in after], rest.copy()
    much = np.zeros(len(after))
    for r, own in enumerate(above):
        much[own] += share[r]
    # Runs by rising `found`, so that `much` always is what follows with as much after it, or more.
    heap = [(rest[r], r) for r, count in enumerate(left) if not count]
    heapq.heapify(heap)
    while heap:
        last, r = heapq.heappop(heap)
        own = above[r]
        crowd = much[own] + last
        if unit:
            crowd = unit * np.ceil(crowd / unit * (1 - 1e-9))
        found[own] = np.maximum(found[own], crowd)
        much[own] -= share[r]
        for earlier in before[r]:
            found[earlier] = max(found[earlier], last + seconds[r])
            left[earlier] -= 1
            if not left[earlier]:
                heapq.heappush(heap, (found[earlier], earlier))
    return found


def _above(before: Sequence[Sequence[int]]) -> list[Ints]:
    """All that must come before each run."""
    size = -(-len(before) // 8)
    forward = all(p < r for r, own in enumerate(before) for p in own)
    reached = [0] * len(before)
    for r in range(len(before)) if forward else reversed(range(len(before))):
        for p in before[r]:
            reached[r] |= reached[p] | 1 << p
    return [
        np.flatnonzero(
            np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), dtype=np.uint8), bitorder="little")
        )
        for bits in reached
    ]
