"""Longer heads and tails, for schedules that do every cluster once: by what gets in each other's way before and after a
run, and by what the solver proves of the parts of the graph there.

A schedule of the graph holds one of each of its parts. So a cluster can start no sooner than the clusters before it
can all have ended, each of which has a head of its own; the same backwards. Where everything passes through one
cluster the part ends there and nothing is lost; else it is what is nearest. Only schedules shorter than the best known
count, so that a device that a cluster has in none of them drops out (Klein and Scholl, "Computing lower bounds by
destructive improvement", European Journal of Operational Research 112, 1999).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from ortools.sat.python import cp_model

from ..bounds.critical_path import Floats, Ints, Ways
from ..model.instance import Instance
from ..model.simulator import Play
from .model import Model, Units, solver
from .transfers import Transfers

CASES = 1024
"""Placements of the neighbours of a cluster that are weighed; where there are more, some neighbours are left out."""
UNITS = 100_000
"""Units of the best known schedule: what is rounded off adds up along the graph."""
CLOSED = 14
"""Clusters of the largest part that is taken whole, back to one cluster through which all of it passes."""
OPEN = 8
"""Clusters of a part of which there is more than that."""
EACH = 0.03
"""Effort that may be spent on one part."""


def joined(instance: Instance, ways: Ways) -> Ways:
    """Longer heads and tails, for schedules that do every cluster once.

    A cluster starts when all it reads is there: what its own device makes of that is made one after the other, and what
    other devices make comes one after the other where it shares a wire. Of each placement of what is read this is a
    schedule of one machine with release times (Jackson, "Scheduling a production line to minimize maximum tardiness",
    UCLA 1955); the shortest is a head. Tails are the same backwards. As they are where values go through third devices.
    """
    joins = Joins(instance, ways)
    for r in range(instance.clusters):
        joins.lengthen_head(r)
    for r in reversed(range(instance.clusters)):
        joins.lengthen_tail(r)
    return joins.found()


class Joins:
    """`head` and `tail` as far as they are known."""

    def __init__(self, instance: Instance, ways: Ways) -> None:
        self.instance, self.ways, self.seconds = instance, ways, ways.seconds
        self.direct = not any(len(hops or ()) > 1 for row in instance.route for hops in row)
        self.head, self.tail = ways.head.copy(), ways.tail.copy()
        self.devices = len(instance.devices)
        self.alone = [len(names) == 1 for names in instance.lane_names]
        self.queue = np.array([[hops[0].lane if hops else -1 for hops in row] for row in instance.route])
        self.room = 1
        while self.devices > 1 and self.devices ** (self.room + 1) <= CASES:
            self.room += 1

    def lengthen_head(self, r: int) -> None:
        """Heads of a cluster by those of the clusters it reads of."""
        instance = self.instance
        made = [(instance.maker[v], v) for v in instance.reads[r] if instance.maker[v] >= 0]
        for d in instance.allowed[r] if made and self.direct else ():
            self.head[r, d] = max(self.head[r, d], self._arrival(made, d))

    def lengthen_tail(self, r: int) -> None:
        """Tails of a cluster by those of its readers."""
        for v in self.instance.makes[r] if self.direct else ():
            for d in self.instance.allowed[r] if self.instance.readers[v] else ():
                self.tail[r, d] = max(self.tail[r, d], self._rest(v, d))

    def found(self) -> Ways:
        """All that is known, with the longest way through the graph."""
        with_all = (self.head + self.seconds + self.tail).min(axis=1)
        length = max(self.ways.length, float(with_all.max()))
        return replace(self.ways, head=self.head, tail=self.tail, length=length)

    def _arrival(self, made: Sequence[tuple[int, int]], d: int) -> float:
        """When values of these (maker, value) pairs can all be on device d."""
        instance, ends = self.instance, self.head + self.seconds
        made = sorted(made, key=lambda pair: (-float(ends[pair[0]].min()), pair[1]))[: self.room]
        makers = np.array([p for p, _ in made])
        cases = _cases([instance.allowed[p] for p in makers])
        trips = np.array([[instance.travel(v, e, d) for e in range(self.devices)] for _, v in made])
        once = np.array([p not in makers[:i] for i, p in enumerate(makers)])
        ready, trip = ends[makers, cases], trips[np.arange(len(made)), cases]
        found = (ready + trip).max(axis=1)
        for e in range(self.devices):
            here = cases == e
            if self.alone[e]:
                seconds = np.where(here & once, self.seconds[makers, e], 0.0)
                leave = np.where(here.any(axis=1), np.where(here, trip, np.inf).min(axis=1), 0.0)
                np.maximum(found, _ended(self.head[makers, e] + 0 * seconds, seconds) + leave, out=found)
        for queue in range(len(instance.copy_lanes)):
            shared = (self.queue[:, d] == queue)[cases] & (cases != d)
            np.maximum(found, _ended(ready, np.where(shared, trip, 0.0)), out=found)
        return float(found.min())

    def _rest(self, v: int, d: int) -> float:
        """What follows value v, made on device d, at the least."""
        instance = self.instance
        rest = self.seconds + self.tail
        readers = sorted(instance.readers[v], key=lambda r: (-float(rest[r].min()), r))[: self.room]
        clusters = np.array(readers)
        cases = _cases([instance.allowed[r] for r in readers])
        tail, seconds = self.tail[clusters, cases], self.seconds[clusters, cases]
        trips, needs = np.zeros((2, len(cases), self.devices))
        for e in range(self.devices):
            here = cases == e
            needs[:, e] = np.where(here, seconds + tail, 0.0).max(axis=1)
            if self.alone[e]:
                np.maximum(needs[:, e], _followed(np.where(here, seconds, 0.0), tail), out=needs[:, e])
            trips[:, e] = np.where(here.any(axis=1), instance.travel(v, d, e), 0.0)
        found = (trips + needs).max(axis=1)
        for queue in range(len(instance.copy_lanes)):
            shared = (self.queue[d] == queue) & (np.arange(self.devices) != d)
            np.maximum(found, _followed(np.where(shared, trips, 0.0), needs), out=found)
        return float(found.min())


def _cases(options: Sequence[Sequence[int]]) -> Ints:
    """All ways to choose one of each: (cases, options)."""
    return np.array(list(product(*options)), dtype=np.int64)


def _ended(release: Floats, takes: Floats) -> Floats:
    """When one machine has done the jobs of each row; what takes no time is no job."""
    order = np.argsort(release, axis=1)
    release, takes = np.take_along_axis(release, order, 1), np.take_along_axis(takes, order, 1)
    end = np.zeros(len(release))
    for own, seconds in zip(release.T, takes.T):
        end = np.where(seconds > 0, np.maximum(end, own) + seconds, end)
    return end


def _followed(takes: Floats, tail: Floats) -> Floats:
    """The least time from the start of the jobs of each row, on one machine, to the end of what follows them."""
    order = np.argsort(-tail, axis=1)
    tail, takes = np.take_along_axis(tail, order, 1), np.take_along_axis(takes, order, 1)
    made: Floats = np.where(takes > 0, np.cumsum(takes, axis=1) + tail, 0.0).max(axis=1)
    return made


def narrowed(
    instance: Instance, best: Play, ways: Ways, below: float, effort: float, until: float = math.inf
) -> tuple[Ways, float]:
    """Longer heads and tails, for schedules of at most `below` seconds that do every cluster once, and the effort
    spent.

    A `length` of more than `below` says that there are none. Deterministic unless `until`, a time of the monotonic
    clock, is reached.
    """
    search = _Windows(instance, best, ways, below, effort, until)
    search.sweep(forward=True, least=effort / 2)
    search.sweep(forward=False, least=0.0)
    return search.ways, effort - search.left


class _Windows:
    """`ways` as far as they are known, and `left` of the effort."""

    def __init__(
        self, instance: Instance, best: Play, ways: Ways, below: float, effort: float, until: float
    ) -> None:
        self.instance, self.best, self.ways = instance, best, ways
        self.units = Units(best.makespan, UNITS)
        self.aim = self.units.floor(below)
        self.left, self.until = effort, until

    def sweep(self, forward: bool, least: float) -> None:
        """Heads of all clusters that read of several others, or tails of those that are read by several, in turn, until
        the `least` effort is left."""
        instance = self.instance
        near = instance.before if forward else instance.after
        order = range(instance.clusters)
        related = _related(near, order if forward else order[::-1])
        joins = Joins(instance, self.ways)
        ways = self.ways = replace(self.ways, head=joins.head, tail=joins.tail)
        own, other = (ways.head, ways.tail) if forward else (ways.tail, ways.head)
        for r in order if forward else order[::-1]:
            (joins.lengthen_head if forward else joins.lengthen_tail)(r)
            part = _part(related, r, forward) if len(near[r]) > 1 else []
            for d in instance.allowed[r] if len(part) > 2 else ():
                if self.left <= least or time.monotonic() >= self.until:
                    break
                if np.isfinite(own[r, d] + other[r, d]):
                    limit = self.aim - self.units.floor(other[r, d])
                    own[r, d] = max(own[r, d], self._length(part, r, d, limit, forward) - ways.seconds[r, d])
        around = joins.found()
        self.ways = replace(around, length=min(around.length, self.units.seconds(self.aim + 1)))

    def _length(self, part: Sequence[int], r: int, d: int, limit: int, forward: bool) -> float:
        """Seconds of cluster r on device d and the part next to it, at the least, if they are no more than `limit`
        units; more than that if they cannot be."""
        instance, ways, units = self.instance, self.ways, self.units
        none = np.where(np.isfinite(ways.seconds), 0.0, np.inf)
        least = (ways.head if forward else ways.tail)[r, d] + ways.seconds[r, d]
        if units.floor(least) > limit:
            return float(least)
        around = Ways(ways.head if forward else none, none if forward else ways.tail, ways.seconds, least)
        offered: list[Sequence[int]] = [()] * instance.clusters
        for q in part:
            offered[q] = instance.allowed[q]
        offered[r] = (d,)
        model = Model(instance, units, self.best, around, limit, offered)
        Transfers(model)
        model.limit()
        own = solver(min(EACH, self.left), self.until)
        # What takes long on the whole model to save much later does not pay on a part.
        own.parameters.cp_model_probing_level = 0
        own.parameters.symmetry_level = 0
        status = own.solve(model.cp)
        self.left -= own.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            return units.seconds(limit + 1)
        return float(max(least, units.seconds(round(own.best_objective_bound))))


def _related(near: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """All clusters before each, or all after it, as the bits of a number."""
    found = [0] * len(near)
    for r in order:
        for q in near[r]:
            found[r] |= found[q] | 1 << q
    return found


def _part(related: Sequence[int], r: int, forward: bool) -> list[int]:
    """The clusters next to r: all back to one through which everything passes, if they are few, or the nearest."""
    order = [q for q in range(len(related)) if related[r] >> q & 1]
    if forward:
        order.reverse()
    shared = related[r]
    for count, q in enumerate(order[:CLOSED], 1):
        rest = related[r] & ~sum(1 << p for p in order[:count])
        if count > 1 and rest == related[q] and shared >> q & 1:
            return order[:count]
        shared &= related[q]
    return order if len(order) <= CLOSED else order[:OPEN]
