"""The best split of an order into calls and stretches on the host, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .calls import Calls
from .segments import crossing, spread

WIDEST = 600
"""Positions of an order that are weighed; longer ones are cut into pieces of about as many blocks."""


def contiguous(calls: Calls, line: Sequence[Sequence[int]]) -> list[int]:
    """The part of each class in the quickest split of `line`, blocks of classes in a topological order.

    Each piece is a call of an accelerator of its own or stays on the host, and begins when all pieces before it have
    ended; dynamic programming over the ends of pieces and the accelerators used. Where pieces need not wait for each
    other the real latency is lower. O(length² × accelerators).
    """
    length = min(len(line), WIDEST)
    if not length:
        return []
    place = [0] * len(calls.members)
    for index, block in enumerate(line):
        for c in block:
            place[c] = index * length // len(line)
    at = [place[c] for c in calls.group]
    seconds, held = np.zeros(length), np.zeros(length)
    for v, position in enumerate(at):
        seconds[position] += calls.call[v]
        held[position] += calls.nbytes[v]
    moved = crossing(
        length,
        ((at[v], [at[w] for w in readers], calls.move[v]) for v, readers in enumerate(calls.readers)),
    )
    call = spread(seconds) + moved
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
    part = [0] * length
    end, left = length, calls.parts
    while end:
        begin = int(since[end, left])
        if called[end, left]:
            part[begin:end] = [left] * (end - begin)
            left -= 1
        end = begin
    return [part[position] for position in place]


def _longest(calls: Calls, at: Sequence[int], length: int) -> np.ndarray:
    """`found[a, b]`: seconds of positions a to b - 1 on the host, where only what they read of each other counts."""
    found = np.zeros((length + 1, length + 1))
    ends: dict[int, np.ndarray] = {}
    missing = [len(reads) for reads in calls.reads]
    unread = [len(readers) for readers in calls.readers]
    ready = sorted((v for v, count in enumerate(missing) if not count), reverse=True)
    while ready:
        v = ready.pop()
        end = np.zeros(at[v] + 1)
        for u in calls.reads[v]:
            np.maximum(end[: at[u] + 1], ends[u][: at[v] + 1], out=end[: at[u] + 1])
            unread[u] -= 1
            if not unread[u]:
                del ends[u]
        end += calls.host[v]
        ends[v] = end
        np.maximum(found[: at[v] + 1, at[v] + 1], end, out=found[: at[v] + 1, at[v] + 1])
        for w in calls.readers[v]:
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return np.maximum.accumulate(found, axis=1) if math.isfinite(found.max()) else found
