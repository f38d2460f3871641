"""A proven lower bound on the makespan: no schedule of this graph on this machine is shorter."""

from __future__ import annotations

import math
import weakref

import numpy as np

from ..model.problem import Problem
from .ancestors import LARGEST, crowded, local
from .critical_path import Ways, ways
from .load import Load, evenly, load
from .traffic import traffic

__all__ = ["lower_bound", "worth"]

MORE = 2
"""Times the longest way through the graph below which the load of devices is for `local` to be tried."""

_LOADS: weakref.WeakKeyDictionary[Problem, tuple[Load, float]] = weakref.WeakKeyDictionary()


def lower_bound(problem: Problem) -> float:
    """The largest of what is known of `problem`, in seconds, even if runs are repeated on several devices; inf where
    nothing fits.

    The longest way through the graph if queues and wires were never busy (`ways`), on graphs of up to 2,000 runs with
    what each run must have on its own device to start early (`local`); the load of devices, wires and memories when it
    is shared out at best (`load`), where wires are crowded with what must cross them between runs (`traffic`); what
    comes before and after each run, on graphs of up to 1,000 runs (`crowded`); all work over all lanes (`evenly`); and
    the host's dispatch of every run. Near linear in reads times devices squared, but for `local` and `crowded`.
    """
    way = ways(problem)
    if not problem.runs or way.length == math.inf:
        return way.length
    if sum(map(len, problem.lane_names)) == 1 and not problem.tight:
        return max(way.length, evenly(problem), sum(problem.dispatch))
    shared = load(problem, way)
    _LOADS[problem] = shared, way.length
    if shared.seconds == math.inf:
        return math.inf
    if way.length * MORE > shared.seconds:
        way = local(problem, way)
    unit = _unit(problem)
    bound = max(way.length, shared.seconds, evenly(problem), sum(problem.dispatch))
    return _up(max(traffic(problem, way, shared, bound), _crowded(problem, way, shared, unit)), unit)


def worth(problem: Problem) -> tuple[list[float], float]:
    """What a second on each device is worth when the work is shared out at best, a mean lane's being worth 1, and how
    often the longest way through the graph goes into the time that takes."""
    if problem not in _LOADS:
        lower_bound(problem)
    lanes = np.array([len(names) for names in problem.lane_names], dtype=float)
    shared, length = _LOADS.get(problem, (Load(0.0, 0.0 * lanes), math.inf))
    whole = float(shared.price @ lanes)
    # Where wires alone are scarce nothing is said of devices.
    price = shared.price * lanes.sum() / whole if whole > 0 else np.ones(len(lanes))
    return price.tolist(), shared.seconds / length if length > 0 else math.inf


def _crowded(problem: Problem, way: Ways, shared: Load, unit: float) -> float:
    """The longest way through the graph in seconds, with what shares the machine before and after each run."""
    lanes = np.array([len(names) for names in problem.lane_names], dtype=float)
    whole = float(shared.price @ lanes)
    if problem.runs > LARGEST or not whole > 0:
        return 0.0
    able = np.isfinite(way.seconds)
    share = np.where(able, np.where(able, way.seconds, 0.0) * shared.price, np.inf).min(axis=1) / whole
    quickest = way.seconds.min(axis=1)
    head = crowded(problem.before, quickest, share, way.head.min(axis=1), unit)
    tail = crowded(problem.after, quickest, share, way.tail.min(axis=1), unit)
    with_all = np.maximum(way.head, head[:, None]) + way.seconds + np.maximum(way.tail, tail[:, None])
    return float(with_all.min(axis=1).max())


def _up(bound: float, unit: float) -> float:
    """The bound, rounded up to whole units."""
    return max(bound, unit * math.ceil(bound / unit * (1 - 1e-9))) if unit else bound


def _unit(problem: Problem) -> float:
    """The seconds of which everything lasts a whole multiple, and so every schedule does; 0 without such."""
    lasting = [s for row in problem.seconds for s in row if s < math.inf] + problem.dispatch
    if not all(s.is_integer() for s in lasting):
        return 0.0
    lasting += [s for modes in problem.modes.values() for _, s in modes]
    hops = {hop for row in problem.route for hops in row for hop in hops or ()}
    lasting += [hop.seconds(nbytes) for hop in hops for nbytes in set(problem.bytes)]
    if not all(float(s).is_integer() for s in lasting):
        return 0.0
    return float(math.gcd(*map(int, lasting)) or 1)
