"""How urgent each cluster is, and what each device would mean for what comes after it."""

from __future__ import annotations

import math
import weakref

import numpy as np

from ..bounds.critical_path import tails
from ..model.instance import Instance

_ORDERS: weakref.WeakKeyDictionary[Instance, list[int]] = weakref.WeakKeyDictionary()


def urgent_first(instance: Instance) -> list[int]:
    """Clusters by falling upward rank, found once: `mean_first` with copies as they are."""
    if instance not in _ORDERS:
        _ORDERS[instance] = mean_first(instance, 1.0)
    return _ORDERS[instance]


def mean_first(instance: Instance, copies: float) -> list[int]:
    """Clusters by falling upward rank, a copy counting `copies` times; ties in graph order, so that it stays
    topological.

    The rank is that of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002): seconds from the start of a cluster to
    the end of the graph along its longest way, on average over devices.
    """
    latency, s_per_byte = (
        copies * _typical(instance, times) for times in (instance.latency, instance.s_per_byte)
    )
    rank = [0.0] * instance.clusters
    for r in reversed(range(instance.clusters)):
        longest = 0.0
        for later in instance.after[r]:
            if rank[later] > longest:
                longest = rank[later]
        for v in instance.makes[r]:
            travel = latency + instance.bytes[v] * s_per_byte
            for later in instance.readers[v]:
                if rank[later] + travel > longest:
                    longest = rank[later] + travel
        row = instance.seconds[r]
        own = [row[d] for d in instance.allowed[r]]
        rank[r] = longest + sum(own) / len(own)
    return sorted(range(instance.clusters), key=lambda r: (-rank[r], r))


def cost_to_go(instance: Instance) -> list[list[float]]:
    """Seconds from the end of each cluster on each device to the end of the graph, were every later cluster placed at
    its best; 0 on devices where it cannot run.

    The optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014), deliveries included.
    """
    tail = tails(instance)
    made: list[list[float]] = np.where(np.isfinite(tail), tail, 0.0).tolist()
    return made


def _typical(instance: Instance, matrix: list[list[float]]) -> float:
    everywhere = range(len(matrix))
    known = [
        matrix[s][d] for s in everywhere for d in everywhere if s != d and instance.latency[s][d] < math.inf
    ]
    return sum(known) / len(known) if known else 0.0
