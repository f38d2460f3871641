"""Proven lower bound on the makespan of all schedules of a graph on a machine."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import numpy as np

from ..model.instance import Instance
from .ancestors import LARGEST, fernandez_bussell, local
from .critical_path import Floats, Paths, paths
from .load import energetic, evenly, load
from .traffic import traffic

__all__ = ["device_prices", "lower_bound"]

MORE = 2
"""Ratio of the load bound to the critical path below which `local` is tried."""

_LOADS: weakref.WeakKeyDictionary[Instance, tuple[float, Floats, float]] = weakref.WeakKeyDictionary()
"""The load bound of each instance, the prices that prove it, and the critical path in seconds."""


def lower_bound(instance: Instance, enough: float = math.inf) -> float:
    """Return the largest of several lower bounds, in seconds, valid with duplicated clusters; inf if nothing fits.

    These are: the critical path without contention (`paths`), up to 2,000 clusters raised by the ancestors
    that a cluster needs on its device to start early (`local`); the optimal fractional load of devices, buses
    and memories (`load`), with the transfers between clusters if they crowd buses (`traffic`); up to 1,000
    clusters, the work before and after each (`fernandez_bussell`), and on identical lanes that within intervals
    (`energetic`); all work over all lanes (`evenly`); the host's dispatch of every cluster. Near linear in
    reads × devices², except `local` and those up to 1,000 clusters. A bound of `enough` seconds ends the search.
    """
    path = paths(instance)
    if not instance.clusters or path.length == math.inf:
        return path.length
    simple = max(path.length, evenly(instance), sum(instance.dispatch))
    if not instance.tight and (simple >= enough or sum(instance.widths) == 1):
        return simple
    shared, price = load(instance, path, math.inf if instance.tight else enough)
    _LOADS[instance] = shared, price, path.length
    if shared == math.inf or shared >= enough:
        return shared
    if path.length * MORE > shared:
        path = local(instance, path)
    unit = _unit(instance)
    bound = traffic(instance, path, (shared, price), max(path.length, shared, simple))
    if instance.clusters <= LARGEST:
        path = _with_work_around(instance, path, price, unit)
        bound = max(bound, path.length)
        if instance.alike:
            bound = energetic(instance, path, _whole(bound, unit))
    return _whole(bound, unit)


def _whole(bound: float, unit: float) -> float:
    """Return the bound, rounded up to whole units if there are any: every makespan is a whole number of them."""
    return max(bound, unit * math.ceil(bound / unit * (1 - 1e-9))) if unit else bound


def device_prices(instance: Instance) -> tuple[list[float], float]:
    """Return the price of a second on each device for the optimal fractional load, normalised to 1 for a mean lane,
    and the ratio of that load to the critical path."""
    if instance not in _LOADS:
        lower_bound(instance)
    lanes = np.array(instance.widths, dtype=float)
    shared, price, length = _LOADS.get(instance, (0.0, 0.0 * lanes, math.inf))
    whole = float(price @ lanes)
    # If only buses are scarce, the prices say nothing about devices.
    price = price * lanes.sum() / whole if whole > 0 else np.ones(len(lanes))
    return price.tolist(), shared / length if length > 0 else math.inf


def _with_work_around(instance: Instance, path: Paths, price: Floats, unit: float) -> Paths:
    """Return the heads and tails with the work that shares the machine before and after each cluster."""
    lanes = np.array(instance.widths, dtype=float)
    whole = float(price @ lanes)
    if not whole > 0:
        return path
    able = np.isfinite(path.seconds)
    share = np.where(able, np.where(able, path.seconds, 0.0) * price, np.inf).min(axis=1) / whole
    quickest = path.seconds.min(axis=1)
    head = fernandez_bussell(instance.before, quickest, share, path.head.min(axis=1), unit)
    tail = fernandez_bussell(instance.after, quickest, share, path.tail.min(axis=1), unit)
    head, tail = np.maximum(path.head, head[:, None]), np.maximum(path.tail, tail[:, None])
    length = float((head + path.seconds + tail).min(axis=1).max())
    return replace(path, head=head, tail=tail, length=max(path.length, length))


def _unit(instance: Instance) -> float:
    """Return the unit in seconds that divides all durations, and so every makespan; 0 if there is none."""
    lasting = [s for row in instance.seconds for s in row if s < math.inf] + instance.dispatch
    if not all(s.is_integer() for s in lasting):
        return 0.0
    lasting += [s for modes in instance.modes.values() for _, s in modes]
    lasting += [hop.seconds(nbytes) for hop in instance.hops.values() for nbytes in set(instance.bytes)]
    if not all(float(s).is_integer() for s in lasting):
        return 0.0
    return float(math.gcd(*map(int, lasting)) or 1)
