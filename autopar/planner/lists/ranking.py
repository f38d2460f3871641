"""Ranks of clusters as priorities, and the cost to go of each cluster on each device."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy as np

from ..bounds.critical_path import tails
from ..model.instance import Instance

_ORDERS: weakref.WeakKeyDictionary[Instance, list[int]] = weakref.WeakKeyDictionary()


def upward_rank(instance: Instance, allowed: Sequence[Sequence[int]] | None = None) -> list[float]:
    """Return the upward rank: seconds from the start of each cluster to the end along its longest path, averaged over
    devices.

    As in HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002), but devices are weighted by their lanes and their
    speed for the cluster, which approximates its likely device. `allowed`: candidate devices of each cluster, if
    narrower than those of the problem.
    """
    shares = [_shares(instance, r, (allowed or instance.allowed)[r]) for r in range(instance.clusters)]
    latency, s_per_byte = (_typical(instance, times) for times in (instance.latency, instance.s_per_byte))
    rank = [0.0] * instance.clusters
    for r in reversed(range(instance.clusters)):
        own = sum(share * s for share, s in zip(shares[r], instance.seconds[r]) if share)
        longest = max((rank[later] for later in instance.after[r]), default=0.0)
        for v in instance.makes[r]:
            travel = latency + instance.bytes[v] * s_per_byte
            for later in instance.readers[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[later]))
                longest = max(longest, rank[later] + apart * travel)
            for target in instance.deliver[v]:
                longest = max(longest, (1.0 - shares[r][target]) * travel)
            for holder in instance.carry[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[holder]))
                longest = max(longest, apart * travel)
        rank[r] = own + longest
    return rank


def urgent_first(instance: Instance, allowed: Sequence[Sequence[int]] | None = None) -> list[int]:
    """Return clusters by decreasing rank, ties in graph order, which is a topological order."""
    if allowed is None and instance in _ORDERS:
        return _ORDERS[instance]
    rank = upward_rank(instance, allowed)
    order = sorted(range(instance.clusters), key=lambda r: (-rank[r], r))
    if allowed is None:
        _ORDERS[instance] = order
    return order


def mean_first(instance: Instance, copies: float) -> list[int]:
    """Return clusters by decreasing upward rank of HEFT with equal weights, copies weighted by `copies`; ties in graph
    order."""
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
    """Return the seconds from the end of each cluster on each device to the end, with every later cluster on its best
    device; 0 if it cannot run there.

    The optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014), deliveries included.
    """
    tail = tails(instance)
    made: list[list[float]] = np.where(np.isfinite(tail), tail, 0.0).tolist()
    return made


def _shares(instance: Instance, cluster: int, allowed: Sequence[int]) -> list[float]:
    raw = [0.0] * len(instance.devices)
    fastest = min(instance.seconds[cluster][d] for d in allowed)
    for d in allowed:
        seconds = instance.seconds[cluster][d]
        speed = fastest / seconds if seconds > 0 else 1.0
        raw[d] = speed * len(instance.lane_names[d])
    total = sum(raw) or 1.0
    return [share / total for share in raw]


def _typical(instance: Instance, matrix: list[list[float]]) -> float:
    everywhere = range(len(matrix))
    known = [
        matrix[s][d] for s in everywhere for d in everywhere if s != d and instance.latency[s][d] < math.inf
    ]
    return sum(known) / len(known) if known else 0.0
