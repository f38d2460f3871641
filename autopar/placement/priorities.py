"""Many topological orders at once: upward ranks under noise, and those in which runs start."""

from __future__ import annotations

import numpy as np

from .tables import Floats, Ints, Tables


def noisy_orders(tables: Tables, count: int, draw: np.random.Generator) -> Ints:
    """(count, R) orders by falling upward rank (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002).

    The first two are of the plain rank; the others have the seconds of each run times a random factor, more of it
    the later they are, and copies counted at random.
    """
    problem, runs, devices = tables.problem, tables.runs, tables.devices
    finite = np.where(np.isfinite(tables.seconds), tables.seconds, np.nan)
    own = (np.nanmin(finite, axis=1) + np.nanmean(finite, axis=1)) / 2
    apart = ~np.eye(devices, dtype=bool) & np.isfinite(tables.way_latency)
    latency = float(tables.way_latency[apart].mean()) if apart.any() else 0.0
    s_per_byte = float(tables.way_s_per_byte[apart].mean()) if apart.any() else 0.0
    spread = np.linspace(0, 0.5, count)
    factor = np.exp(draw.normal(0, 1, (runs, count)) * spread)
    counted = draw.uniform(0, 1.2, count)
    factor[:, :2] = 1.0
    counted[:2] = 1 - 1 / devices
    rank = np.zeros((runs, count))
    for r in reversed(range(runs)):
        longest = np.zeros(count)
        for later in problem.after[r]:
            np.maximum(longest, rank[later], out=longest)
        for v in problem.makes[r]:
            travel = counted * (latency + problem.bytes[v] * s_per_byte)
            for later in problem.readers[v]:
                np.maximum(longest, rank[later] + travel, out=longest)
        rank[r] = own[r] * factor[r] + longest
    return np.argsort(-rank.T, axis=1, kind="stable")


def places(start: Floats) -> Floats:
    """(K, R) the place of each run in the order of `start` (K, R) in seconds; ties in graph order."""
    order = np.argsort(start, axis=1, kind="stable")
    found = np.empty(order.shape)
    np.put_along_axis(found, order, np.arange(order.shape[1], dtype=np.float64)[None], axis=1)
    return found
