"""How much work must be done within some span of time, wherever it is done."""

from __future__ import annotations

import numpy as np

from ..model.problem import Problem
from .critical_path import Floats, Ways
from .load import Load

LARGEST = 2_000
"""Runs above which it is not tried."""
CELLS = 4_000_000
"""Runs on devices weighed against spans, which is what makes the spans fewer."""
MANY = 1_000
"""Runs above which a quarter of that must do."""


def energy(problem: Problem, ways: Ways, load: Load, bound: float) -> float:
    """A bound that is at least `bound`, which must be one, in seconds.

    In a schedule as long as `bound` each run has a window between its head and its tail, and so a least part that it
    does within any span; what is too much for a span must be done after it (Fernandez and Bussell, IEEE Transactions
    on Computers 22(8), 1973). Unrelated devices: a second on each is worth its price in `load`, and a run is done
    where its part is worth least.
    """
    runs, devices = ways.seconds.shape
    lanes = np.array([len(names) for names in problem.lane_names], dtype=float)
    weight = load.price * lanes
    if not 0 < runs <= LARGEST or not weight.sum() > 0:
        return bound
    cells = CELLS if runs <= MANY else CELLS // 4
    spans = max(2, min(runs + 1, int((cells / (runs * devices)) ** 0.5)))
    late = np.where(np.isfinite(ways.seconds), bound - ways.tail, -np.inf)
    froms = _some(np.append(0.0, ways.head.min(axis=1)), spans)
    untils = _some(np.append(bound, late.max(axis=1)), spans)
    opens, closes = ways.head.min(axis=0), late.max(axis=0)
    excess = 0.0
    for begin in froms:
        ends = untils[untils > begin]
        if not len(ends):
            break
        least = np.full((runs, len(ends)), np.inf)
        for d in range(devices):
            able = np.isfinite(ways.seconds[:, d])
            seconds = ways.seconds[able, d]
            after = np.clip(ways.head[able, d] + seconds - begin, 0.0, seconds)
            before = np.clip(ends - late[able, d, None] + seconds[:, None], 0.0, seconds[:, None])
            part = np.minimum(np.minimum(after[:, None], before), ends - begin)
            least[able] = np.minimum(least[able], part * load.price[d])
        idle = np.zeros(len(ends))
        for d in range(devices):
            before = np.clip(np.minimum(ends, opens[d]) - begin, 0.0, None)
            after = np.clip(ends - max(begin, closes[d]), 0.0, None)
            idle += weight[d] * np.minimum(before + after, ends - begin)
        excess = max(excess, float((least.sum(axis=0) + idle - float(weight.sum()) * (ends - begin)).max()))
    return bound + excess / float(weight.sum())


def _some(times: Floats, count: int) -> Floats:
    """At most `count` of some times, in order, each once."""
    found: Floats = np.sort(times[np.isfinite(times)])
    # As `np.unique`, which loads masked arrays first.
    found = found[np.append(True, np.diff(found) > 0)]
    if len(found) > count:
        found = np.asarray(found[np.linspace(0, len(found) - 1, count).round().astype(np.int64)])
    return found
