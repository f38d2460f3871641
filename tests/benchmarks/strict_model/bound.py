"""A lower bound on the period of loads that are balanced."""

from __future__ import annotations

import numpy as np

from autopar.planner.throughput.loads import Loads

ROUNDS = 300
"""Rounds of the search for prices: any give a valid bound."""


def bound(loads: Loads) -> float:
    """The dual of the linear program that may cut groups into pieces and moves values for nothing, in seconds.

    With a price for a second of each lane, all prices adding up to 1, no placement is better than each group on the
    device where it is cheapest (Lenstra, Shmoys and Tardos, Mathematical Programming 46, 1990). Prices are found by
    multiplicative weights.
    """
    found = max((busy / width for busy, width in zip(loads.fixed, loads.width)), default=0.0)
    if not loads.groups:
        return found
    area = loads.area
    found = max(found, float(area.min(axis=1).max()) / max(loads.lanes))
    idle = np.array([busy / lanes for busy, lanes in zip(loads.fixed, loads.lanes)])
    price = np.isfinite(area).any(axis=0).astype(float)
    price /= price.sum()
    every = np.arange(loads.groups)
    finite = np.where(np.isfinite(area), area, 1e300)
    for step in range(ROUNDS if loads.devices > 1 else 1):
        cost = finite * price
        # A device that cannot run a group is no way out of its cost, whatever its price.
        cost[~np.isfinite(area)] = np.inf
        at = cost.argmin(axis=1)
        found = max(found, float(cost[every, at].sum() + price @ idle))
        busy = idle + np.bincount(at, weights=area[every, at], minlength=loads.devices)
        longest = float(busy.max())
        if longest <= 0:
            break
        price = price * (1 + 0.5 / (1 + step / 20) * (busy / longest - 0.5))
        price /= price.sum()
    return found
