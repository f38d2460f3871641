"""Contiguous splits of an order of the graph: what enters and leaves each segment, and the quickest chain of calls.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020: an accelerator runs its part of a graph as one call, which fetches what it reads, computes,
and sends back what others read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.planner.model.toposort import late

Floats = NDArray[np.float64]

WIDEST = 600
"""Positions of an order that are weighed, as time goes with their square; longer ones are cut into as many pieces."""


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


@dataclass(frozen=True)
class Calls:
    """What there is to place: of node v `host[v]` and `call[v]` seconds on the host and on an accelerator (inf: not
    there), `nbytes[v]` on an accelerator, `readers[v]`, and `move[v]` seconds to move its output; `parts` accelerators
    of `cap` bytes each."""

    host: Sequence[float]
    call: Sequence[float]
    nbytes: Sequence[float]
    readers: Sequence[Sequence[int]]
    move: Sequence[float]
    parts: int
    cap: float


def contiguous(calls: Calls, at: Sequence[int]) -> list[int] | None:
    """The part of each node, 0 for the host and 1 to `parts` for accelerators, in the quickest split of an order: node
    v is at position `at[v]`, and what is at one position stays together. None where nothing fits.

    Each piece is a call of an accelerator of its own or stays on the host, and begins when all pieces before it have
    ended; dynamic programming over the ends of pieces and the accelerators used. Where pieces need not wait for each
    other the real latency is lower. O(length² × accelerators) for min(positions, `WIDEST`).
    """
    length = max(at, default=-1) + 1
    if length > WIDEST:
        at, length = [position * WIDEST // length for position in at], WIDEST
    if not length:
        return []
    seconds, held = np.zeros(length), np.zeros(length)
    for v, position in enumerate(at):
        seconds[position] += calls.call[v]
        held[position] += calls.nbytes[v]
    moved = ((at[v], [at[w] for w in readers], calls.move[v]) for v, readers in enumerate(calls.readers))
    call = spread(seconds) + crossing(length, moved)
    call[spread(held) > calls.cap] = np.inf
    host = _longest(calls, at, length)

    many = calls.parts + 1
    best = np.full((length + 1, many), np.inf)
    best[0] = 0.0
    since = np.zeros((length + 1, many), dtype=np.int64)
    called = np.zeros((length + 1, many), dtype=bool)
    every = np.arange(many)
    for end in range(1, length + 1):
        stay = best[:end] + host[:end, end][:, None]
        start = stay.argmin(axis=0)
        best[end], since[end] = stay[start, every], start
        if calls.parts:
            go = best[:end, :-1] + call[:end, end][:, None]
            start = go.argmin(axis=0)
            reached = go[start, every[:-1]]
            better = np.concatenate(([False], reached < best[end, 1:]))
            best[end, better], since[end, better] = reached[better[1:]], start[better[1:]]
            called[end] = better
    end, left = length, calls.parts
    if best[end, left] == np.inf:
        return None
    part = [0] * length
    while end:
        begin = int(since[end, left])
        if called[end, left]:
            part[begin:end] = [left] * (end - begin)
            left -= 1
        end = begin
    return [part[position] for position in at]


def _longest(calls: Calls, at: Sequence[int], length: int) -> Floats:
    """`found[a, b]`: seconds of positions a to b - 1 on the host, where only what they read of each other counts."""
    found = np.zeros((length + 1, length + 1))
    reads: list[list[int]] = [[] for _ in at]
    for v, readers in enumerate(calls.readers):
        for w in readers:
            reads[w].append(v)
    ends: dict[int, Floats] = {}
    unread = [len(readers) for readers in calls.readers]
    for v in late(reads):
        end = np.zeros(at[v] + 1)
        for u in reads[v]:
            np.maximum(end[: at[u] + 1], ends[u][: at[v] + 1], out=end[: at[u] + 1])
            unread[u] -= 1
            if not unread[u]:
                del ends[u]
        end += calls.host[v]
        ends[v] = end
        np.maximum(found[: at[v] + 1, at[v] + 1], end, out=found[: at[v] + 1, at[v] + 1])
    return np.maximum.accumulate(found, axis=1) if math.isfinite(found.max()) else found
