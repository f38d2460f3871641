"""Shares of the batch by speed and memory: a device with too little memory gets fewer rows.

The bytes of a device grow linearly with its rows, from a constant (parameters, sums, joined values). Two
predictions for different shares determine slope and constant for each device. The rows that fit are then
assigned in proportion to speed. Choices are predicted one after the other until one fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from .split import allot

TURNS = 6
"""Limit on the chosen shares that are predicted; after it, no shares are assumed to fit."""

Peaks: TypeAlias = Callable[[tuple[int, ...]], Sequence[int] | None]
"""Returns the peak bytes of each device for the rows on each; None if these rows cannot be placed."""


def share_out(batch: int, speeds: Sequence[float], rooms: Sequence[float]) -> tuple[int, ...] | None:
    """Assign rows in proportion to speed, limited by each device's room; None if there is too little room.

    Rows for which a device has no room go to the others, in proportion to their speed.
    """
    full: dict[int, int] = {}
    while True:
        free = [d for d, speed in enumerate(speeds) if d not in full and speed > 0]
        rest = batch - sum(full.values())
        given = dict(zip(free, allot(rest, [speeds[d] for d in free]))) if rest and free else {}
        over = {d: max(0, math.floor(rooms[d])) for d, rows in given.items() if rows > rooms[d]}
        if not over:
            break
        full |= over
    shares = full | given
    return tuple(shares.get(d, 0) for d in range(len(speeds))) if sum(shares.values()) == batch else None


def fitting(
    batch: int, speeds: Sequence[float], caps: Sequence[int | None], peaks: Peaks
) -> tuple[int, ...] | None:
    """Return rows of each device in proportion to `speeds` (any unit), within `caps` (bytes; None: no limit).

    None if no shares are found that fit by `peaks`, or if plain shares by speed already fit.
    """
    limits = [math.inf if cap is None else float(cap) for cap in caps]
    samples: list[dict[int, int]] = [{} for _ in speeds]

    def hold(found: Sequence[int]) -> bool:
        return all(peak <= limit for peak, limit in zip(found, limits))

    plain = allot(batch, speeds)
    found = peaks(plain)
    if found is None or hold(found):
        return None
    _note(samples, plain, found)
    # In the second prediction, every other device has more rows than in the first, the rest fewer.
    tilted = allot(batch, [speed * (1.5 if d % 2 else 0.5) for d, speed in enumerate(speeds)])
    found = peaks(tilted)
    if found is None:
        return None
    _note(samples, tilted, found)
    spare = tilted if hold(found) else None
    for _ in range(TURNS):
        rooms = [_room(known, limit) for known, limit in zip(samples, limits)]
        chosen = share_out(batch, speeds, rooms)
        if chosen is None or (found := peaks(chosen)) is None:
            return spare
        if hold(found):
            return chosen
        _note(samples, chosen, found)
    return spare


def _note(samples: list[dict[int, int]], rows: Sequence[int], found: Sequence[int]) -> None:
    for known, count, peak in zip(samples, rows, found):
        known[count] = max(peak, known.get(count, 0))


def _room(known: dict[int, int], limit: float) -> float:
    """Return the rows that fit on a device, by the line through the two predictions nearest to its limit."""
    if math.isinf(limit):
        return math.inf
    refused = min((count for count, peak in known.items() if peak > limit), default=math.inf)
    near = sorted(known, key=lambda count: (abs(known[count] - limit), count))[:2]
    if len(near) < 2 or known[near[0]] == known[near[1]]:
        rows = math.inf if known[near[0]] <= limit else 0.0
    else:
        a, b = sorted(near)
        each = (known[b] - known[a]) / (b - a)
        rows = a + (limit - known[a]) / each if each > 0 else math.inf
    return max(0.0, min(rows, refused - 1))
