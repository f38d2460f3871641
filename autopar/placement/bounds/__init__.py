"""A proven lower bound on the makespan: no schedule of this graph on this machine is shorter."""

from __future__ import annotations

import math

from ...problem import Problem
from .energy import energy
from .load import load
from .ways import ways

__all__ = ["lower_bound"]


def lower_bound(problem: Problem) -> float:
    """The largest of what is known of `problem`, in seconds, even if runs are repeated on several devices.

    The longest way through the graph if queues and wires were never busy (`ways`); the load of devices, wires and
    memories when it is shared out at best (`load`); what must be done within some span of time, on graphs of up to
    2,000 runs (`energy`); and the host's dispatch of every run. Near linear in reads times devices squared.
    """
    if not problem.runs:
        return 0.0
    way = ways(problem)
    if way.length == math.inf:
        return way.length
    shared = load(problem, way)
    bound = max(way.length, shared.seconds, sum(problem.dispatch))
    return _whole(problem, energy(problem, way, shared, bound))


def _whole(problem: Problem, bound: float) -> float:
    """The bound, rounded up where everything lasts a whole multiple of some seconds, and so every schedule does."""
    lasting = [s for row in problem.seconds for s in row if s < math.inf] + problem.dispatch
    if not all(s.is_integer() for s in lasting):
        return bound
    lasting += [s for modes in problem.modes.values() for _, s in modes]
    hops = {hop for row in problem.route for hops in row for hop in hops or ()}
    lasting += [hop.seconds(nbytes) for hop in hops for nbytes in set(problem.bytes)]
    if not all(float(s).is_integer() for s in lasting):
        return bound
    unit = math.gcd(*map(int, lasting)) or 1
    return max(bound, float(unit * math.ceil(bound / unit * (1 - 1e-9))))
