"""Load balancing by simulated annealing: the placement with the least maximum load."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from .loads import Loads, Standing

STEPS = 24_000
"""Limit on moves, lower if a group touches many values, so that about `TOUCHES` values are read."""
PAIRS = 200
"""Limit on moves for each pair of groups."""
TOUCHES = 120_000
POWER = 16
"""Exponent of the power mean of loads that is minimised: close to the maximum, but with a slope on all loads."""
STEEPEST = 1e18
"""Limit on a load, relative to the initial maximum, so that its power stays finite."""
CHAINS = ((0, 0.01, 0.35), (1, 0.15, 0.25), (0, 0.0, 0.15), (-1, 0.01, 0.25), (-1, 0.0, 0.25))
"""For each chain: its start (-1: the best so far), the initial share by which the mean may rise, and its share of the
steps. With many groups, chains that never rise find placements near the best start."""


def balance(
    loads: Loads, until: float = math.inf, starts: Sequence[Sequence[int]] = ()
) -> tuple[list[int] | None, bool]:
    """Return the device of each group in the best placement found (None: nothing fits), and whether the time limit
    `until` (`time.monotonic`) ended the search.

    Starts from `starts` and from all groups on one device; if none fits, from the largest first, each on the fullest
    device with room. The best are improved by simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983):
    move a group, a cluster of neighbours, or swap two groups, mostly from the busiest device. Deterministic.
    """
    if not loads.groups:
        return [], False
    found = [Standing(loads, at) for at in (*(_only(loads, d) for d in range(loads.devices)), *starts)]
    if all(stand.over for stand in found):
        found.append(Standing(loads, _fullest(loads)))
    found.sort(key=lambda stand: (stand.lost, stand.over, stand.period))
    if loads.devices == 1:
        return (None if found[0].over or found[0].lost else found[0].at), False
    touched = sum(len(own) for own in loads.touches) / loads.groups
    steps = max(1000, min(STEPS, int(TOUCHES / (1 + touched))))
    most = PAIRS * loads.groups * loads.groups
    best: list[int] | None = None
    period, cut = math.inf, False
    for index, (start, heat, share) in enumerate(CHAINS):
        stand = Standing(loads, found[start].at if start >= 0 or best is None else best)
        tried = min(int(steps * share), most)
        at, reached, cut = _anneal(loads, stand, heat, tried, random.Random(index), until)
        if at is not None and reached < period:
            best, period = at, reached
        if cut:
            break
    return best, cut


def _only(loads: Loads, device: int) -> list[int]:
    """Place every group on one device, or on its fastest device if it cannot run there."""
    quickest = loads.area.argmin(axis=1)
    return [device if device in allowed else int(quickest[g]) for g, allowed in enumerate(loads.allowed)]


def _fullest(loads: Loads) -> list[int]:
    """Place groups by decreasing bytes, each on the fullest device with room, or with most room left."""
    left, at = list(loads.caps), [0] * loads.groups
    for g in sorted(range(loads.groups), key=lambda g: (-max(loads.held[g]), g)):
        room = [(left[d] - loads.held[g][d], d) for d in loads.allowed[g]]
        at[g] = min((own for own in room if own[0] >= 0), default=max(room))[1]
        left[at[g]] -= loads.held[g][at[g]]
    return at


def _anneal(
    loads: Loads, stand: Standing, hot: float, steps: int, draw: random.Random, until: float
) -> tuple[list[int] | None, float, bool]:
    """Return the best placement met, its period, and whether time ran out."""
    rank = {g: index for index, g in enumerate(loads.order)}
    near = _neighbours(loads)
    scale = max(stand.load) or 1.0
    room = sum(cap for cap in loads.caps if cap < math.inf) or 1.0

    def height() -> float:
        total = 0.0
        for load in stand.load:
            total += min(load / scale, STEEPEST) ** POWER
        made: float = total ** (1 / POWER) + 10 * stand.over / room + 10 * stand.lost
        return made

    current = height()
    best: list[int] | None = None
    period = math.inf
    if not stand.over and not stand.lost:
        best, period = list(stand.at), stand.period
    for step in range(steps):
        if step % 64 == 0 and time.monotonic() > until:
            return best, period, True
        moves = _moves(loads, stand, draw, rank, near)
        if not moves:
            continue
        back = [(g, stand.at[g]) for g, _ in moves]
        for g, d in moves:
            stand.move(g, d)
        reached = height()
        heat = hot * (1 - step / steps) ** 2 * current
        if reached <= current or (heat > 0 and draw.random() < math.exp((current - reached) / heat)):
            current = reached
            if stand.period < period * (1 - 1e-12) and not stand.over:
                best, period = list(stand.at), stand.period
        else:
            for g, d in reversed(back):
                stand.move(g, d)
    return best, period, False


def _neighbours(loads: Loads) -> list[list[int]]:
    """Return the groups that share a value with each group; of a value with many readers, only the maker and an
    adjacent one."""
    near: list[dict[int, None]] = [{} for _ in range(loads.groups)]
    for value in loads.values:
        if value.maker >= 0:
            for g in value.readers[:16]:
                if g != value.maker:
                    near[g][value.maker] = None
                    near[value.maker][g] = None
    return [list(own) for own in near]


def _moves(
    loads: Loads, stand: Standing, draw: random.Random, rank: dict[int, int], near: list[list[int]]
) -> list[tuple[int, int]]:
    """Return groups to move and their targets."""
    at = stand.at
    busiest = max(range(loads.resources), key=stand.load.__getitem__)
    for _ in range(20):
        g = int(draw.random() * loads.groups)
        if busiest >= loads.devices or at[g] == busiest or draw.random() < 0.1:
            break
    own = at[g]
    if near[g] and draw.random() < 0.75:
        device = at[near[g][int(draw.random() * len(near[g]))]]
    else:
        device = int(draw.random() * loads.devices)
    if device == own or device not in loads.allowed[g]:
        return []
    kind = draw.random()
    if kind < 0.6:
        return [(g, device)]
    if kind < 0.85:
        step = 1 if draw.random() < 0.5 else -1
        position, chosen = rank[g], []
        for _ in range(1 + int(8 * draw.random() ** 2)):
            if not 0 <= position < loads.groups:
                break
            other = loads.order[position]
            if at[other] == own and device in loads.allowed[other]:
                chosen.append((other, device))
            position += step
        return chosen
    for _ in range(20):
        other = int(draw.random() * loads.groups)
        if at[other] == device and own in loads.allowed[other]:
            return [(g, device), (other, own)]
    return []
