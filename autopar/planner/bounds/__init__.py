"""A proven lower bound on the makespan: no schedule of this graph on this machine is shorter."""

from __future__ import annotations

import math
import weakref

import numpy as np

from ..model.instance import Instance
from .ancestors import LARGEST, crowded, local
from .critical_path import Ways, ways
from .load import Load, evenly, load
from .traffic import traffic

__all__ = ["lower_bound", "worth"]

MORE = 2
"""Times the longest way through the graph below which the load of devices is for `local` to be tried."""

_LOADS: weakref.WeakKeyDictionary[Instance, tuple[Load, float]] = weakref.WeakKeyDictionary()


def lower_bound(instance: Instance) -> float:
    """The largest of what is known of `instance`, in seconds, even if clusters are repeated on several devices; inf
    where nothing fits.

    The longest way through the graph if queues and wires were never busy (`ways`), on graphs of up to 2,000 clusters
    with what each cluster must have on its own device to start early (`local`); the load of devices, wires and memories
    when it is shared out at best (`load`), where wires are crowded with what must cross them between clusters
    (`traffic`); what comes before and after each cluster, on graphs of up to 1,000 clusters (`crowded`); all work over
    all lanes (`evenly`); and the host's dispatch of every cluster. Near linear in reads times devices squared, but for
    `local` and `crowded`.
    """
    way = ways(instance)
    if not instance.clusters or way.length == math.inf:
        return way.length
    if sum(map(len, instance.lane_names)) == 1 and not instance.tight:
        return max(way.length, evenly(instance), sum(instance.dispatch))
    shared = load(instance, way)
    _LOADS[instance] = shared, way.length
    if shared.seconds == math.inf:
        return math.inf
    if way.length * MORE > shared.seconds:
        way = local(instance, way)
    unit = _unit(instance)
    bound = max(way.length, shared.seconds, evenly(instance), sum(instance.dispatch))
    return _up(max(traffic(instance, way, shared, bound), _crowded(instance, way, shared, unit)), unit)


def worth(instance: Instance) -> tuple[list[float], float]:
    """Price of a second on each device when the work is shared out at best, normalised to 1 for a mean lane, and the
    ratio of the time that this takes to the longest path through the graph."""
    if instance not in _LOADS:
        lower_bound(instance)
    lanes = np.array([len(names) for names in instance.lane_names], dtype=float)
    shared, length = _LOADS.get(instance, (Load(0.0, 0.0 * lanes), math.inf))
    whole = float(shared.price @ lanes)
    # Where wires alone are scarce nothing is said of devices.
    price = shared.price * lanes.sum() / whole if whole > 0 else np.ones(len(lanes))
    return price.tolist(), shared.seconds / length if length > 0 else math.inf


def _crowded(instance: Instance, way: Ways, shared: Load, unit: float) -> float:
    """The longest way through the graph in seconds, with what shares the machine before and after each cluster."""
    lanes = np.array([len(names) for names in instance.lane_names], dtype=float)
    whole = float(shared.price @ lanes)
    if instance.clusters > LARGEST or not whole > 0:
        return 0.0
    able = np.isfinite(way.seconds)
    share = np.where(able, np.where(able, way.seconds, 0.0) * shared.price, np.inf).min(axis=1) / whole
    quickest = way.seconds.min(axis=1)
    head = crowded(instance.before, quickest, share, way.head.min(axis=1), unit)
    tail = crowded(instance.after, quickest, share, way.tail.min(axis=1), unit)
    with_all = np.maximum(way.head, head[:, None]) + way.seconds + np.maximum(way.tail, tail[:, None])
    return float(with_all.min(axis=1).max())


def _up(bound: float, unit: float) -> float:
    """The bound, rounded up to whole units."""
    return max(bound, unit * math.ceil(bound / unit * (1 - 1e-9))) if unit else bound


def _unit(instance: Instance) -> float:
    """The seconds of which everything lasts a whole multiple, and so every schedule does; 0 without such."""
    lasting = [s for row in instance.seconds for s in row if s < math.inf] + instance.dispatch
    if not all(s.is_integer() for s in lasting):
        return 0.0
    lasting += [s for modes in instance.modes.values() for _, s in modes]
    hops = {hop for row in instance.route for hops in row for hop in hops or ()}
    lasting += [hop.seconds(nbytes) for hop in hops for nbytes in set(instance.bytes)]
    if not all(float(s).is_integer() for s in lasting):
        return 0.0
    return float(math.gcd(*map(int, lasting)) or 1)
