"""Bounds from a cluster's ancestors and descendants: those needed on its own device for an early start, and all that
must precede or follow it on a shared machine."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..model.instance import Instance
from ..model.toposort import ancestors, inverse
from .critical_path import Floats, Ints, Paths, levels, nearest
from .load import areas

LARGEST_LOCAL = 2_000
"""Limit on clusters for `local`: beyond it the load bound is stronger."""
STEPS = 150_000
"""Limit on (cluster, ancestor) pairs, which limits the ancestors of each cluster."""
LARGEST = 1_000
"""Limit on clusters for `fernandez_bussell`: time and memory grow with their square."""


def local(instance: Instance, paths: Paths) -> Paths:
    """Raise heads by the ancestors that a cluster must have on its own device to start early; return the result.

    A cluster that starts before an input can have come from another device has the producer on its own
    device, and so on for the producer's inputs. All these share the lanes (Papadimitriou and Yannakakis, SIAM
    Journal on Computing 19(2), 1990). Valid with duplicates: only one copy of each ancestor is assumed.
    """
    clusters, devices = paths.seconds.shape
    if devices < 2 or not 0 < clusters <= LARGEST_LOCAL:
        return paths
    deepest = math.isqrt(2 * STEPS // (clusters * devices))
    cones = _Cones(instance, paths, deepest)
    for r in levels(instance.before)[0]:
        cones.add(r)
    head = np.array(cones.head)
    length = float((head + paths.seconds + paths.tail).min(axis=1).max())
    return replace(paths, head=head, length=max(paths.length, length))


class _Cones:
    """Raised `head`s of the clusters added so far, and the resulting arrival times."""

    def __init__(self, instance: Instance, paths: Paths, deepest: int) -> None:
        self.instance, self.deepest = instance, deepest
        latency, self.s_per_byte = nearest(instance)
        self.latency = latency + np.diag([math.inf] * len(latency))
        self.seconds, self.areas = paths.seconds.tolist(), areas(instance, paths).tolist()
        self.head: list[list[float]] = paths.head.tolist()
        self.end: list[list[float]] = [[]] * instance.clusters
        self.comes: list[list[float]] = [[]] * len(instance.values)
        """Least seconds until each value can arrive at each device from another one."""
        self.reads = [
            [(v, instance.maker[v]) for v in own if instance.maker[v] >= 0] for own in instance.reads
        ]

    def add(self, r: int) -> None:
        """Raise the heads of a cluster; its predecessors have been added."""
        head = self.head[r]
        for v, maker in self.reads[r]:
            head = [max(t, min(there, own)) for t, there, own in zip(head, self.comes[v], self.end[maker])]
        if len({maker for _, maker in self.reads[r]}) > 1:
            for d in self.instance.able[r]:
                head[d] = self._start(r, d, head[d])
        self.head[r] = head
        self.end[r] = [t + seconds for t, seconds in zip(head, self.seconds[r])]
        for v in self.instance.makes[r]:
            trips = self.latency + self.instance.bytes[v] * self.s_per_byte
            self.comes[v] = (np.array(self.end[r])[:, None] + trips).min(axis=0).tolist()

    def _start(self, r: int, d: int, start: float) -> float:
        """Return a lower bound of at least `start` on the start of a cluster on a device.

        Adds the ancestors whose results could arrive last, until these keep the lanes busy up to the next
        arrival.
        """
        # When the value can have come if all work between is here; seconds of this; value; its maker.
        heap = [(-self.comes[v][d], 0.0, v, maker) for v, maker in self.reads[r] if self.comes[v][d] > start]
        if len(heap) < 2:
            # With one maker, its head already counts what this could add.
            return start
        heapq.heapify(heap)
        jobs: list[tuple[float, float, float, float]] = []
        seen = set()
        while heap and len(jobs) < self.deepest:
            comes, between, _, maker = heapq.heappop(heap)
            if -comes <= start:
                break
            if maker in seen:
                continue
            seen.add(maker)
            seconds = self.seconds[maker][d]
            jobs.append((self.head[maker][d], seconds, self.areas[maker][d], between))
            start = max(start, min(-comes, _busy(jobs, self.instance.widths[d])))
            for v, earlier in self.reads[maker] if start < -comes else ():
                along = max(comes, -self.comes[v][d] - between - seconds)
                heapq.heappush(heap, (along, between + seconds, v, earlier))
        return start


def _busy(jobs: Sequence[tuple[float, float, float, float]], lanes: int) -> float:
    """Return the least time to complete jobs (release, seconds, least lanes × seconds, tail), in seconds.

    On one lane, this is the preemptive optimum (Carlier, EJOR 11(1), 1982).
    """
    if lanes > 1:
        longest, total = 0.0, 0.0
        for head, seconds, area, tail in sorted(jobs, reverse=True):
            total += area
            longest = max(longest, head + total / lanes, head + seconds + tail)
        return longest
    waiting: list[list[float]] = []
    now = longest = 0.0
    arriving = sorted(jobs)
    for (head, seconds, _, tail), until in zip(arriving, [job[0] for job in arriving[1:]] + [math.inf]):
        now = max(now, head)
        heapq.heappush(waiting, [-tail, seconds])
        while waiting and now < until:
            after, left = waiting[0]
            if now + left > until:
                waiting[0][1] = left - (until - now)
                now = until
            else:
                now += left
                longest = max(longest, now - after)
                heapq.heappop(waiting)
    return longest


def fernandez_bussell(
    after: Sequence[Sequence[int]], seconds: Floats, share: Floats, rest: Floats, unit: float = 0.0
) -> Floats:
    """Return lower bounds (R) in seconds from the end of each cluster to the end of the schedule, at least `rest` (R).

    A successor that at least x seconds follow ends before these, and takes its `share` (R), in seconds of the
    whole machine (Fernandez and Bussell, IEEE Transactions on Computers 22(8), 1973). `seconds` (R): least
    time of each cluster. Results are rounded up to whole `unit`s unless that is 0. Predecessors as `after`
    and heads as `rest` give bounds on the starts. Vectorised; O(R²).
    """
    before = inverse(after)
    above = _above(before)
    left, found = [len(later) for later in after], rest.copy()
    much = np.zeros(len(after))
    for r, own in enumerate(above):
        much[own] += share[r]
    # Clusters come by rising `found`, so `much` sums the descendants with at least `last` seconds after them.
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
    """Return the numbers of all predecessors of each cluster."""
    size = -(-len(before) // 8)
    order = range(len(before))
    forward = all(p < r for r, own in enumerate(before) for p in own)
    return [
        np.flatnonzero(
            np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), dtype=np.uint8), bitorder="little")
        )
        for bits in ancestors(before, order if forward else order[::-1])
    ]
