"""Which lanes of a device its tasks take when only how busy each lane is counts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Part = tuple[float, int]
"""Seconds, and the lanes taken for so long."""


def share(parts: Sequence[Part], lanes: int) -> list[tuple[int, ...]]:
    """The lanes of each part: the longest first, on those that are least busy so far (Graham, "Bounds on
    multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969)."""
    found: list[tuple[int, ...]] = [()] * len(parts)
    busy = [(0.0, lane) for lane in range(lanes)]
    for index in sorted(range(len(parts)), key=lambda index: (-parts[index][0], -parts[index][1], index)):
        seconds, wide = parts[index]
        taken = [heapq.heappop(busy) for _ in range(wide)]
        for so_far, lane in taken:
            heapq.heappush(busy, (so_far + seconds, lane))
        found[index] = tuple(sorted(lane for _, lane in taken))
    return found


def busiest(parts: Sequence[tuple[float, int]], lanes: int) -> float:
    """Seconds of the busiest lane when parts, given as (-seconds, -lanes) in order, are shared out by `share`."""
    busy = [0.0] * lanes
    for less, fewer in parts:
        if fewer == -1:
            heapq.heapreplace(busy, busy[0] - less)
        else:
            taken = [heapq.heappop(busy) for _ in range(-fewer)]
            for so_far in taken:
                heapq.heappush(busy, so_far - less)
    return max(busy)
