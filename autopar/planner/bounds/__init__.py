"""Proven lower bound on the makespan of all schedules of a graph on a machine."""

from __future__ import annotations

import math

from ..model.instance import Instance
from .critical_path import paths
from .load import evenly, load

__all__ = ["lower_bound"]


def lower_bound(instance: Instance, enough: float = math.inf) -> float:
    """Return the largest of several lower bounds, in seconds; inf if nothing fits.

    These are: the critical path without contention (`paths`); the optimal fractional load of devices, buses and
    memories (`load`); all work over all lanes (`evenly`); the host's dispatch of every cluster. Near linear in
    reads × devices². A bound of `enough` seconds ends the search.
    """
    path = paths(instance)
    if not instance.clusters or path.length == math.inf:
        return path.length
    simple = max(path.length, evenly(instance), sum(instance.dispatch))
    if not instance.tight and (simple >= enough or sum(instance.widths) == 1):
        return simple
    shared = load(instance, path, math.inf if instance.tight else enough)
    return max(simple, shared)
