"""Chains of list schedules that are changed a little, each justified.

Every cluster is put as late as can be, those that end last first, and then again as early as can be, those that start
first first (Valls, Ballestín and Quintanilla, "Justification and RCPSP: a technique that pays", European Journal of
Operational Research 165(2), 2005).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bounds.ancestors import LARGEST
from ..bounds.critical_path import Floats, Ints
from .lists import Way


@dataclass(frozen=True)
class ChainsParams:
    """How many lists are tried, and how they are changed."""

    steps: int = 1_500_000
    """Clusters placed in all, at most: the search is counted in these, never in seconds."""
    square: int = 600
    """The same for each pair of clusters of a small graph."""
    chains: int = 8
    children: int = 16
    """Lists tried of each chain in a round."""
    least: float = 0.2
    most: float = 6.0
    """How far starts are moved, in times of the mean run."""
    shares: tuple[float, ...] = (0.05, 0.2, 1.0)
    """Parts of a list that are moved."""
    local: float = 0.5
    """Share of lists of which one stretch of time is moved instead."""
    stretch: float = 0.15
    """How far such a stretch reaches at most, as a share of the bound."""
    crossed: float = 0.4
    """Share of lists that from some time on are those of another chain."""
    late: float = 0.05
    """Weight of the seconds by which runs are late on average, were all to end by the bound: of two schedules that end
    together the one with less to mend is nearer to a shorter one."""
    take_over: int = 10
    """Rounds between the best chains' taking over the worst."""


PARAMS = ChainsParams()


class Chains:
    """Chains of lists, by when their clusters start."""

    def __init__(self, forth: Way, back: Way, bound: float, params: ChainsParams | None = None) -> None:
        self.params = params or PARAMS
        self.forth, self.back, self.before = Decoder(forth), Decoder(back), forth.before
        self.bound = bound
        self.seconds = np.array(forth.seconds)
        self.mean = float(self.seconds.mean())
        self.level = np.array(forth.levels(len(forth.seconds) <= LARGEST))
        self.draw = np.random.default_rng(0)

    def search(self, best: list[float], first: Sequence[list[float]], until: float) -> list[float]:
        """The ends of the shortest schedule found from `first`, or `best`."""
        params, clusters = self.params, len(self.seconds)
        keys = np.resize(np.array(first) - self.seconds, (params.chains, clusters))
        score = np.full(params.chains, math.inf)
        length = max(best)
        for number in range(
            min(params.steps, params.square * clusters * clusters)
            // (3 * params.chains * params.children * clusters)
        ):
            if length <= self.bound or time.monotonic() > until:
                break
            ends = self.forth.ends(self._children(keys))
            ends = self.forth.ends(-self.back.ends(-ends))
            start = ends - self.seconds
            late = np.maximum(start + self.level - self.bound, 0.0).mean(axis=1)
            found = (ends.max(axis=1) + params.late * late).reshape(params.chains, params.children)
            rows = found.argmin(axis=1) + np.arange(params.chains) * params.children
            kept = found.min(axis=1) <= score
            keys[kept], score[kept] = start[rows[kept]], found.min(axis=1)[kept]
            shortest = int(ends.max(axis=1).argmin())
            if ends[shortest].max() < length:
                length, best = float(ends[shortest].max()), ends[shortest].tolist()
            if number % params.take_over == params.take_over - 1:
                ranked = np.argsort(score, kind="stable")
                better, worse = ranked[: params.chains // 4], ranked[-(params.chains // 4) :]
                keys[worse], score[worse] = keys[better], score[better]
        return best

    def _children(self, keys: Floats) -> Floats:
        """Changed lists, `children` of each chain, in which each cluster comes after those it waits for."""
        params, draw = self.params, self.draw
        shape = params.chains * params.children, keys.shape[1]
        found = np.repeat(keys, params.children, axis=0)
        crossed = np.flatnonzero(draw.random(len(found)) < params.crossed)
        since = draw.uniform(0, self.bound, (len(crossed), 1))
        other = keys[draw.integers(0, params.chains, len(crossed))]
        found[crossed] = np.where(found[crossed] < since, found[crossed], np.maximum(other, since))
        moved = draw.random(shape) < draw.choice(params.shares, (len(found), 1))
        local = np.flatnonzero(draw.random(len(found)) < params.local)
        middle = draw.uniform(0, self.bound, (len(local), 1))
        reach = draw.uniform(1.5 * self.mean, 3 * self.mean + params.stretch * self.bound, (len(local), 1))
        moved[local] = np.abs(found[local] - middle) < reach
        far = np.tile(
            np.geomspace(params.least, params.most, params.children) * self.mean,
            params.chains,
        )[:, None]
        found += np.where(moved, draw.normal(0, 1, shape) * far, 0.0)
        for cluster, earlier in enumerate(self.before):
            if earlier:
                np.maximum(found[:, cluster], found[:, earlier].max(axis=1), out=found[:, cluster])
        return found


class Decoder:
    """When the clusters of many lists end in one direction of time, each cluster as early as the ones before it in its
    list let it."""

    def __init__(self, way: Way) -> None:
        self.clusters, self.lanes, self.back = len(way.seconds), way.lanes, way.back
        self.seconds = np.array(way.seconds)
        self.before, self.count = _padded(way.before, self.clusters)

    def ends(self, keys: Floats) -> Floats:
        """(K, R) seconds, of lists by rising key (K, R); of equals what comes first in the direction."""
        if self.back:
            orders = self.clusters - 1 - np.argsort(keys[:, ::-1], axis=1, kind="stable").T
        else:
            orders = np.argsort(keys, axis=1, kind="stable").T
        orders = np.ascontiguousarray(orders)
        rows = np.arange(len(keys))
        ends = np.zeros(len(keys) * (self.clusters + 1))
        free = np.zeros((len(keys), self.lanes))
        first, queue = rows * (self.clusters + 1), rows * self.lanes
        for cluster in orders:
            lane = free.argmin(axis=1) + queue
            end = free.take(lane)
            widest = int(self.count.take(cluster).max())
            if widest:
                earlier = self.before.take(cluster, axis=0)[:, :widest] + first[:, None]
                np.maximum(end, ends.take(earlier).max(axis=1), out=end)
            end += self.seconds.take(cluster)
            free.put(lane, end)
            ends.put(first + cluster, end)
        return ends.reshape(len(keys), -1)[:, :-1]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Ints, Ints]:
    """Rows of different lengths as one array and their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    widest = int(lengths.max()) if len(rows) else 0
    found = np.full((len(rows), max(1, widest)), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        found[index, : len(row)] = row
    return found, lengths
