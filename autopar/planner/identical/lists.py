"""A graph on lanes that are all alike, in one direction of time, and list schedules of it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from ..bounds.ancestors import crowded


class Way:
    """The graph in one direction of time: forth, with the clusters in graph order, or `back` from the end."""

    def __init__(
        self, seconds: list[float], before: Sequence[Sequence[int]], lanes: int, back: bool = False
    ) -> None:
        self.seconds, self.before, self.lanes, self.back = seconds, before, lanes, back
        self.after: list[list[int]] = [[] for _ in before]
        for r, earlier in enumerate(before):
            for p in earlier:
                self.after[p].append(r)

    def levels(self, crowds: bool) -> list[float]:
        """Seconds from the start of each cluster to the end of any schedule, at least; with what shares the lanes if
        `crowds`."""
        found = list(self.seconds)
        for r in range(len(found)) if self.back else reversed(range(len(found))):
            found[r] += max((found[later] for later in self.after[r]), default=0.0)
        if not crowds:
            return found
        own = np.array(self.seconds)
        unit = float(all(seconds.is_integer() for seconds in self.seconds))
        made: list[float] = (
            own + crowded(self.after, own, own / self.lanes, np.array(found) - own, unit)
        ).tolist()
        return made

    def listed(self, keys: Sequence[float]) -> list[float]:
        """When each cluster ends if, whenever a lane is free, of all that could start the cluster with the least key
        does."""
        missing = [len(earlier) for earlier in self.before]
        ready = [(keys[r], r) for r, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        running: list[tuple[float, int]] = []
        ends, now = [0.0] * len(missing), 0.0
        while ready or running:
            while ready and len(running) < self.lanes:
                r = heapq.heappop(ready)[1]
                ends[r] = now + self.seconds[r]
                heapq.heappush(running, (ends[r], r))
            now = running[0][0]
            while running and running[0][0] == now:
                for later in self.after[heapq.heappop(running)[1]]:
                    missing[later] -= 1
                    if not missing[later]:
                        heapq.heappush(ready, (keys[later], later))
        return ends


def reduced(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """What each cluster waits for, without what that waits for already."""
    found: list[list[int]] = []
    reached: list[int] = []
    for earlier in before:
        kept, known = [], 0
        for p in sorted(earlier, reverse=True):
            if not known >> p & 1:
                kept.append(p)
                known |= reached[p] | 1 << p
        found.append(kept)
        reached.append(known)
    return found
