"""Heads and tails of runs that read of several others, or are read by several: these get in each other's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ..bounds.critical_path import Floats, Ints, Ways
from ..model.problem import Problem

CASES = 1024
"""Placements of the neighbours of a run that are weighed; where there are more, some neighbours are left out."""


def joined(problem: Problem, ways: Ways) -> Ways:
    """Longer heads and tails, for schedules that do every run once.

    A run starts when all it reads is there: what its own device makes of that is made one after the other, and what
    other devices make comes one after the other where it shares a wire. Of each placement of what is read this is a
    schedule of one machine with release times (Jackson, "Scheduling a production line to minimize maximum tardiness",
    UCLA 1955); the shortest is a head. Tails are the same backwards. As they are where values go through third devices.
    """
    joins = Joins(problem, ways)
    for r in range(problem.runs):
        joins.lengthen_head(r)
    for r in reversed(range(problem.runs)):
        joins.lengthen_tail(r)
    return joins.found()


class Joins:
    """`head` and `tail` as far as they are known."""

    def __init__(self, problem: Problem, ways: Ways) -> None:
        self.problem, self.ways, self.seconds = problem, ways, ways.seconds
        self.direct = not any(len(hops or ()) > 1 for row in problem.route for hops in row)
        self.head, self.tail = ways.head.copy(), ways.tail.copy()
        self.devices = len(problem.devices)
        self.alone = [len(names) == 1 for names in problem.lane_names]
        self.queue = np.array([[hops[0].lane if hops else -1 for hops in row] for row in problem.route])
        self.room = 1
        while self.devices > 1 and self.devices ** (self.room + 1) <= CASES:
            self.room += 1

    def lengthen_head(self, r: int) -> None:
        """Heads of a run by those of the runs it reads of."""
        problem = self.problem
        made = [(problem.maker[v], v) for v in problem.reads[r] if problem.maker[v] >= 0]
        for d in problem.allowed[r] if made and self.direct else ():
            self.head[r, d] = max(self.head[r, d], self._arrival(made, d))

    def lengthen_tail(self, r: int) -> None:
        """Tails of a run by those of its readers."""
        for v in self.problem.makes[r] if self.direct else ():
            for d in self.problem.allowed[r] if self.problem.readers[v] else ():
                self.tail[r, d] = max(self.tail[r, d], self._rest(v, d))

    def found(self) -> Ways:
        """All that is known, with the longest way through the graph."""
        with_all = (self.head + self.seconds + self.tail).min(axis=1)
        length = max(self.ways.length, float(with_all.max()))
        return replace(self.ways, head=self.head, tail=self.tail, length=length)

    def _arrival(self, made: Sequence[tuple[int, int]], d: int) -> float:
        """When values of these (maker, value) pairs can all be on device d."""
        problem, ends = self.problem, self.head + self.seconds
        made = sorted(made, key=lambda pair: (-float(ends[pair[0]].min()), pair[1]))[: self.room]
        makers = np.array([p for p, _ in made])
        cases = _cases([problem.allowed[p] for p in makers])
        trips = np.array([[problem.travel(v, e, d) for e in range(self.devices)] for _, v in made])
        once = np.array([p not in makers[:i] for i, p in enumerate(makers)])
        ready, trip = ends[makers, cases], trips[np.arange(len(made)), cases]
        found = (ready + trip).max(axis=1)
        for e in range(self.devices):
            here = cases == e
            if self.alone[e]:
                seconds = np.where(here & once, self.seconds[makers, e], 0.0)
                leave = np.where(here.any(axis=1), np.where(here, trip, np.inf).min(axis=1), 0.0)
                np.maximum(found, _ended(self.head[makers, e] + 0 * seconds, seconds) + leave, out=found)
        for queue in range(len(problem.copy_lanes)):
            shared = (self.queue[:, d] == queue)[cases] & (cases != d)
            np.maximum(found, _ended(ready, np.where(shared, trip, 0.0)), out=found)
        return float(found.min())

    def _rest(self, v: int, d: int) -> float:
        """What follows value v, made on device d, at the least."""
        problem = self.problem
        rest = self.seconds + self.tail
        readers = sorted(problem.readers[v], key=lambda r: (-float(rest[r].min()), r))[: self.room]
        runs = np.array(readers)
        cases = _cases([problem.allowed[r] for r in readers])
        tail, seconds = self.tail[runs, cases], self.seconds[runs, cases]
        trips, needs = np.zeros((2, len(cases), self.devices))
        for e in range(self.devices):
            here = cases == e
            needs[:, e] = np.where(here, seconds + tail, 0.0).max(axis=1)
            if self.alone[e]:
                np.maximum(needs[:, e], _followed(np.where(here, seconds, 0.0), tail), out=needs[:, e])
            trips[:, e] = np.where(here.any(axis=1), problem.travel(v, d, e), 0.0)
        found = (trips + needs).max(axis=1)
        for queue in range(len(problem.copy_lanes)):
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
