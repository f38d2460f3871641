"""What enters and leaves each segment of an order: the cost that splits of a graph into contiguous pieces weigh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def crossing(length: int, values: Iterable[tuple[int, Sequence[int], float]]) -> Floats:
    """`found[a, b]`: seconds of what is moved into and out of positions a to b - 1 of an order of `length`.

    Of each value `values` give the position it is made at, those it is read at, and its seconds, paid once by a
    segment that reads it from outside and once by the segment that makes it when one outside reads it. A position
    of -1 is outside of all. O(reads + length²): each value is a few rectangles of (a, b).
    """
    corners: dict[tuple[int, int], float] = {}

    def add(first: int, last: int, low: int, high: int, seconds: float) -> None:
        if first <= last and low <= high:
            for at in ((first, low), (last + 1, high + 1)):
                corners[at] = corners.get(at, 0.0) + seconds
            for at in ((first, high + 1), (last + 1, low)):
                corners[at] = corners.get(at, 0.0) - seconds

    for made, read, seconds in values:
        if not seconds or not read:
            continue
        right = sorted({r for r in read if r > made})
        left = sorted({r for r in read if r < made}, reverse=True)
        before = made
        for r in right:
            add(before + 1, r, r + 1, length, seconds)
            before = r
        before = made
        for r in left:
            if r >= 0:
                add(0, r, r + 1, before, seconds)
            before = r
        if made >= 0:
            add(0, made, made + 1, length, seconds)
            inside = min(made, *read), max(made, *read)
            add(0, inside[0], inside[1] + 1, length, -seconds)
    found = np.zeros((length + 2, length + 2))
    if corners:
        at = np.array(list(corners), dtype=np.int64)
        found[at[:, 0], at[:, 1]] = list(corners.values())
    held: Floats = np.maximum(found.cumsum(axis=0).cumsum(axis=1)[: length + 1, : length + 1], 0.0)
    return held


def spread(amounts: Floats) -> Floats:
    """`found[a, b]`: the sum of `amounts` of positions a to b - 1, infinite where one of them is."""
    endless = ~np.isfinite(amounts)
    total = np.concatenate(([0.0], np.where(endless, 0.0, amounts).cumsum()))
    count = np.concatenate(([0], endless.cumsum()))
    found = total[None, :] - total[:, None]
    found[count[None, :] > count[:, None]] = np.inf
    return found
