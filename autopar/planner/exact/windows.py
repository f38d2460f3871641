"""Longer heads and tails, for schedules without duplicates, from optimal schedules of the parts of the graph before
and after each cluster.

A schedule of the graph contains one of each part. So a cluster cannot start before all clusters that precede it can
have ended, each with its own head; likewise backwards. A part ends at a cluster through which everything passes,
without loss; otherwise it is the nearest clusters. Only schedules shorter than the best known count, so that devices
drop out (Klein and Scholl, "Computing lower bounds by destructive improvement", European Journal of Operational
Research 112, 1999).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from ..bounds.critical_path import Ways
from ..model.instance import Instance
from ..model.simulator import Play
from .model import Model, Units, solver
from .transfers import Transfers

UNITS = 100_000
"""Units of the best known schedule: rounding errors add up along the graph."""
CLOSED = 14
"""Limit on the clusters of a part back to one cluster through which everything passes."""
OPEN = 8
"""Clusters of any other part."""
EACH = 0.03
"""Limit on the effort for one part."""


def narrowed(
    instance: Instance, best: Play, ways: Ways, below: float, effort: float, until: float = math.inf
) -> tuple[Ways, float]:
    """Lengthen heads and tails for schedules without duplicates of at most `below` seconds; return them and the effort
    spent.

    A `length` above `below` proves that there are none. Deterministic unless `until`, a time of the monotonic clock,
    is reached.
    """
    search = _Windows(instance, best, ways, below, effort, until)
    search.sweep(forward=True, least=effort / 2)
    search.sweep(forward=False, least=0.0)
    return search.ways, effort - search.left


class _Windows:
    """`ways` as known so far, and `left` of the effort."""

    def __init__(
        self, instance: Instance, best: Play, ways: Ways, below: float, effort: float, until: float
    ) -> None:
        self.instance, self.best, self.ways = instance, best, ways
        self.units = Units(best.makespan, UNITS)
        self.aim = self.units.floor(below)
        self.left, self.until = effort, until

    def sweep(self, forward: bool, least: float) -> None:
        """Lengthen heads of all clusters with several inputs, or tails of those with several readers, until only the
        effort `least` is left."""
        instance = self.instance
        near = instance.before if forward else instance.after
        order = range(instance.clusters)
        related = _related(near, order if forward else order[::-1])
        ways = self.ways = replace(self.ways, head=self.ways.head.copy(), tail=self.ways.tail.copy())
        own, other = (ways.head, ways.tail) if forward else (ways.tail, ways.head)
        for r in order if forward else order[::-1]:
            part = _part(related, r, forward) if len(near[r]) > 1 else []
            for d in instance.allowed[r] if len(part) > 2 else ():
                if self.left <= least or time.monotonic() >= self.until:
                    break
                if np.isfinite(own[r, d] + other[r, d]):
                    limit = self.aim - self.units.floor(other[r, d])
                    own[r, d] = max(own[r, d], self._length(part, r, d, limit, forward) - ways.seconds[r, d])
        length = max(ways.length, float((ways.head + ways.seconds + ways.tail).min(axis=1).max()))
        self.ways = replace(ways, length=min(length, self.units.seconds(self.aim + 1)))

    def _length(self, part: Sequence[int], r: int, d: int, limit: int, forward: bool) -> float:
        """Return a lower bound in seconds on cluster r on device d with the part next to it, if at most `limit` units;
        more than that if it is infeasible."""
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
    """Return the set of all clusters before each, or after it, as a bit mask."""
    found = [0] * len(near)
    for r in order:
        for q in near[r]:
            found[r] |= found[q] | 1 << q
    return found


def _part(related: Sequence[int], r: int, forward: bool) -> list[int]:
    """Return the clusters next to r: all back to one through which everything passes, if few, or the nearest."""
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
