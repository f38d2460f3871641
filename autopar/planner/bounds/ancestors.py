"""Bounds from what surrounds a cluster: ancestors needed on its own device for an early start, all that must precede
or follow it on a shared machine, and its makers and readers in all their placements."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

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
CASES = 1_024
"""Limit on the placements of a cluster's neighbours in `joined`; with more, some neighbours are left out."""


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


def joined(instance: Instance, paths: Paths) -> Paths:
    """Raise heads and tails for schedules that compute each cluster once, by contention among neighbours; return the
    result.

    A cluster starts when all its inputs are there. Those made on one device of a single lane are made one after the
    other, and those that share a queue are sent one after the other. For each placement of the makers, this is a
    problem of one machine with release times (Jackson, "Scheduling a production line to minimize maximum tardiness",
    UCLA, 1955); the shortest is a head, and backwards a tail. Unchanged if some route has several hops.
    """
    if any(len(hops or ()) > 1 for row in instance.route for hops in row):
        return paths
    joins = _Joins(instance, paths)
    for r in range(instance.clusters):
        joins.raise_head(r)
    for r in reversed(range(instance.clusters)):
        joins.raise_tail(r)
    length = float((joins.head + paths.seconds + joins.tail).min(axis=1).max())
    return replace(paths, head=joins.head, tail=joins.tail, length=max(paths.length, length))


class _Joins:
    """Heads and tails raised so far, in seconds (R, D)."""

    def __init__(self, instance: Instance, paths: Paths) -> None:
        self.instance, self.seconds = instance, paths.seconds
        self.head, self.tail = paths.head.copy(), paths.tail.copy()
        self.devices = len(instance.devices)
        self.single = [d for d, width in enumerate(instance.widths) if width == 1]
        self.queue = np.array([[hops[0].lane if hops else -1 for hops in row] for row in instance.route])
        self.most = 1
        """Limit on neighbours: their placements are at most `CASES`."""
        while self.devices > 1 and self.devices ** (self.most + 1) <= CASES:
            self.most += 1

    def raise_head(self, r: int) -> None:
        """Raise the heads of a cluster; its predecessors come first."""
        instance = self.instance
        made = [(instance.maker[v], v) for v in instance.reads[r] if instance.maker[v] >= 0]
        for d in instance.allowed[r] if made else ():
            self.head[r, d] = max(self.head[r, d], self._arrival(made, d))

    def raise_tail(self, r: int) -> None:
        """Raise the tails of a cluster; its successors come first."""
        instance = self.instance
        for v in instance.makes[r]:
            for d in instance.allowed[r] if instance.readers[v] else ():
                self.tail[r, d] = max(self.tail[r, d], self._rest(v, d))

    def _arrival(self, made: Sequence[tuple[int, int]], d: int) -> float:
        """Return the least time at which values of these (maker, value) pairs can all be on device d."""
        instance, ends = self.instance, self.head + self.seconds
        made = sorted(made, key=lambda pair: (-float(ends[pair[0]].min()), pair[1]))[: self.most]
        makers = np.array([p for p, _ in made])
        at = _placements([instance.allowed[p] for p in makers])
        trips = np.array([[instance.travel(v, e, d) for e in range(self.devices)] for _, v in made])
        first = np.array([p not in makers[:i] for i, p in enumerate(makers)])
        ready, trip = ends[makers, at], trips[np.arange(len(made)), at]
        found = (ready + trip).max(axis=1)
        for e in self.single:
            here = at == e
            seconds = np.where(here & first, self.seconds[makers, e], 0.0)
            leave = np.where(here.any(axis=1), np.where(here, trip, np.inf).min(axis=1), 0.0)
            release = np.broadcast_to(self.head[makers, e], at.shape)
            np.maximum(found, _ended(release, seconds) + leave, out=found)
        for queue in range(len(instance.copy_lanes)):
            shared = (self.queue[:, d] == queue)[at] & (at != d)
            np.maximum(found, _ended(ready, np.where(shared, trip, 0.0)), out=found)
        return float(found.min())

    def _rest(self, v: int, d: int) -> float:
        """Return the least time from the end of the maker of value v on device d to the end of the schedule."""
        instance, rest = self.instance, self.seconds + self.tail
        readers = sorted(instance.readers[v], key=lambda r: (-float(rest[r].min()), r))[: self.most]
        clusters = np.array(readers)
        at = _placements([instance.allowed[r] for r in readers])
        tail, seconds = self.tail[clusters, at], self.seconds[clusters, at]
        trips, needs = np.zeros((2, len(at), self.devices))
        for e in range(self.devices):
            here = at == e
            needs[:, e] = np.where(here, seconds + tail, 0.0).max(axis=1)
            if e in self.single:
                np.maximum(needs[:, e], _followed(np.where(here, seconds, 0.0), tail), out=needs[:, e])
            trips[:, e] = np.where(here.any(axis=1), instance.travel(v, d, e), 0.0)
        found = (trips + needs).max(axis=1)
        for queue in range(len(instance.copy_lanes)):
            shared = (self.queue[d] == queue) & (np.arange(self.devices) != d)
            np.maximum(found, _followed(np.where(shared, trips, 0.0), needs), out=found)
        return float(found.min())


def _placements(allowed: Sequence[Sequence[int]]) -> Ints:
    """Return all ways to choose a device for each cluster, a row each."""
    return np.array(list(product(*allowed)), dtype=np.int64)


def _ended(release: Floats, seconds: Floats) -> Floats:
    """Return the time at which one machine has done the jobs of each row, those with `seconds` above 0."""
    order = np.argsort(release, axis=1)
    release, seconds = np.take_along_axis(release, order, 1), np.take_along_axis(seconds, order, 1)
    end = np.zeros(len(release))
    for begin, own in zip(release.T, seconds.T):
        end = np.where(own > 0, np.maximum(end, begin) + own, end)
    return end


def _followed(seconds: Floats, tail: Floats) -> Floats:
    """Return the least time from the start of the jobs of each row, on one machine, to the end of their tails."""
    order = np.argsort(-tail, axis=1)
    tail, seconds = np.take_along_axis(tail, order, 1), np.take_along_axis(seconds, order, 1)
    found: Floats = np.where(seconds > 0, np.cumsum(seconds, axis=1) + tail, 0.0).max(axis=1)
    return found
