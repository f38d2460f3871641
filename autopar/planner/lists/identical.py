"""List schedules on lanes that are all alike, where nothing that moves takes time: P | prec | Cmax.

Each is justified: every cluster is put as late as can be, those that end last first, and then again as early as can be,
those that start first first (Valls, Ballestín and Quintanilla, "Justification and RCPSP: a technique that pays",
European Journal of Operational Research 165(2), 2005).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from ..bounds.ancestors import LARGEST, crowded
from ..candidates import Race
from ..model.instance import Instance
from ..model.simulator import Schedule, in_order

LARGE = 6_000
"""Clusters above which what need not be waited for is not looked for."""
JUSTIFIED = 2
"""Times that a list schedule is justified at most."""
LISTED = 300_000
"""Clusters placed in these, at most."""
CLOSE = 1e-9
"""Share above the lower bound at which the search ends."""


class _Way:
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
        """Finish time of each cluster in seconds under list scheduling on identical lanes: a lane that is free starts,
        of all clusters that are ready, the one with the least key."""
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


def _reduced(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Transitive reduction of the precedences: predecessors of each cluster without those that others imply."""
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


def identical(race: Race) -> Schedule:
    """The shortest list schedule found for a problem whose lanes are alike; no other is tried once one is at the bound.
    O((R + E) log R) for R clusters and E edges."""
    instance, lanes = race.instance, race.instance.alike
    seconds = [row[lanes[0][0]] for row in instance.seconds]
    before = _reduced(instance.before) if instance.clusters <= LARGE else instance.before
    forth = _Way(seconds, before, len(lanes))
    back = _Way(seconds, forth.after, len(lanes), back=True)
    enough, left = race.bound * (1 + CLOSE), LISTED
    best: list[float] = []
    for keys in _rules(forth, back):
        ends = forth.listed(keys)
        for justified in range(JUSTIFIED + 1):
            if justified:
                ends = forth.listed(_last_first(back.listed(_last_first(ends))))
            if not best or max(ends) < max(best):
                best = ends
            left -= 2 * instance.clusters
            if max(best) <= enough or left < 0 or race.late:
                return _schedule(instance, forth, lanes, best)
    return _schedule(instance, forth, lanes, best)


def _rules(forth: _Way, back: _Way) -> Iterator[list[float]]:
    """Keys of the first lists: by what follows each cluster, and by a schedule made from the end; then both again, with
    what shares the lanes."""
    for crowds in (False, True) if len(forth.seconds) <= LARGEST else (False,):
        yield _last_first(forth.levels(crowds))
        yield _last_first(back.listed(_last_first(back.levels(crowds))))


def _last_first(times: Sequence[float]) -> list[float]:
    return [-seconds for seconds in times]


def _schedule(instance: Instance, way: _Way, lanes: Sequence[tuple[int, int]], ends: list[float]) -> Schedule:
    """Each cluster on the lane that has been free for the shortest time."""
    # A start may, after rounding, seem to be before the end of what it waits for.
    starts = (
        max(end - own, *(ends[p] for p in earlier), 0.0)
        for end, own, earlier in zip(ends, way.seconds, way.before)
    )
    free = [0.0] * len(lanes)
    placed = []
    for start, end, r in sorted(zip(starts, ends, range(instance.clusters))):
        able = [since for since in free if since <= start * (1 + CLOSE)] or [min(free)]
        which = free.index(max(able))
        free[which] = end
        placed.append((r, lanes[which][0], (lanes[which][1],)))
    return in_order(instance, "search", placed, ())
