"""Search for the placement of the smallest largest load: contiguous splits of an order, then annealing."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import numpy as np

from ..contiguous import Floats, crossing, spread
from .loads import Loads, Standing

STEPS = 24_000
"""Moves tried in all, fewer where a group touches many values."""
PAIRS = 200
"""Moves for each pair of groups, at most."""
TOUCHES = 120_000
"""Values looked at in all, about."""
WIDEST = 480
"""Positions of an order that splits are weighed for; longer orders are cut into pieces of equal work."""
POWER = 16
"""Power of the mean of loads that annealing lowers: near the largest load, but with a slope on all others too."""
STEEPEST = 1e18
"""Times the largest load at first above which a load counts as this: its power is still a number."""
CHAINS = ((0, 0.01, 0.35), (1, 0.15, 0.25), (0, 0.0, 0.15), (-1, 0.01, 0.25), (-1, 0.0, 0.25))
"""Of each chain of annealing: the start it goes on from (-1: the best so far), the share of itself that the mean may
rise by at the beginning, falling to nothing, and its share of the steps. Of many groups, in which there are too many
ways up, those that never rise find what is near the best split."""


def balance(loads: Loads, until: float = math.inf) -> tuple[list[int] | None, bool]:
    """The device of each group in the best placement found (None: nothing found fits), and whether the time that
    `until` names (of `time.monotonic`) ended the search.

    Starts are all groups on one device, and splits of the order of the graph into one contiguous piece for each
    device, optimal for their sequence of devices by dynamic programming (as Tarnawski et al., NeurIPS 2020, over
    ideals); where none of these fits, the largest first, each on the fullest device that has room. The best are
    improved by simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983): a
    group, a run of neighbours in the order, or two groups swapped, mostly from the busiest device. Deterministic.
    """
    if not loads.groups:
        return [], False
    found = [Standing(loads, _only(loads, device)) for device in range(loads.devices)]
    found += [Standing(loads, at) for at in splits(loads)]
    if all(stand.over for stand in found):
        found.append(Standing(loads, _fullest(loads)))
    found.sort(key=lambda stand: (stand.lost, stand.over, stand.period))
    if loads.devices == 1:
        return (None if found[0].over or found[0].lost else found[0].at), False
    touched = sum(len(own) for own in loads.touches) / loads.groups
    steps = max(1000, min(STEPS, int(TOUCHES / (1 + touched))))
    best: list[int] | None = None
    period, cut = math.inf, False
    for index, (start, heat, share) in enumerate(CHAINS):
        stand = Standing(loads, found[start].at if start >= 0 or best is None else best)
        at, reached, cut = _anneal(loads, stand, heat, int(steps * share), random.Random(index), until)
        if at is not None and reached < period:
            best, period = at, reached
        if cut:
            break
    return best, cut


def _only(loads: Loads, device: int) -> list[int]:
    """Everything on one device, but for what it cannot run, which is where it is quickest."""
    quickest = loads.area.argmin(axis=1)
    return [device if device in allowed else int(quickest[g]) for g, allowed in enumerate(loads.allowed)]


def _fullest(loads: Loads) -> list[int]:
    """Groups by falling bytes, each on the fullest device that has room for it, or where most is left."""
    left, at = list(loads.caps), [0] * loads.groups
    for g in sorted(range(loads.groups), key=lambda g: (-max(loads.held[g]), g)):
        room = [(left[d] - loads.held[g][d], d) for d in loads.allowed[g]]
        at[g] = min((own for own in room if own[0] >= 0), default=max(room))[1]
        left[at[g]] -= loads.held[g][at[g]]
    return at


def splits(loads: Loads) -> list[list[int]]:
    """The best contiguous split of the order for each of some sequences of the devices."""
    pieces = _pieces(loads)
    length = max(pieces) + 1
    area = np.zeros((loads.devices, length))
    held = np.zeros((loads.devices, length))
    for g, piece in enumerate(pieces):
        area[:, piece] += np.array(loads.seconds[g]) / np.array(loads.lanes)
        held[:, piece] += np.array(loads.held[g], dtype=float)
    kinds: dict[bytes, list[int]] = {}
    for d in range(loads.devices):
        own = (loads.lanes[d], loads.caps[d], *_link(loads, d))
        kinds.setdefault(area[d].tobytes() + held[d].tobytes() + repr(own).encode(), []).append(d)
    costs: dict[int, Floats] = {}
    for devices in kinds.values():
        d = devices[0]
        latency, rate, shared = _link(loads, d)
        moved = crossing(
            length,
            (
                (
                    pieces[value.maker] if value.maker >= 0 else -1,
                    [pieces[g] for g in value.readers],
                    latency + rate * value.nbytes,
                )
                for value in loads.values
                if value.home != d
            ),
        )
        work = spread(area[d])
        cost = work + moved if shared else np.maximum(work, moved)
        cost[spread(held[d]) > loads.caps[d]] = np.inf
        costs.update(dict.fromkeys(devices, cost))
    found = []
    for sequence in _sequences(list(kinds.values())):
        cuts = _split([costs[d] for d in sequence])
        if cuts:
            where = [0] * length
            for d, (a, b) in zip(sequence, cuts):
                where[a:b] = [d] * (b - a)
            found.append([where[piece] for piece in pieces])
    return found


def _pieces(loads: Loads) -> list[int]:
    """The position of each group in the order, in pieces of about equal work where it is long."""
    pieces = [0] * loads.groups
    work = loads.area.min(axis=1)
    total = float(work.sum())
    done = 0.0
    for position, g in enumerate(loads.order):
        if loads.groups <= WIDEST:
            pieces[g] = position
        else:
            pieces[g] = min(WIDEST - 1, int(done / total * WIDEST)) if total else position % WIDEST
            done += float(work[g])
    named = {piece: rank for rank, piece in enumerate(sorted(set(pieces)))}
    return [named[piece] for piece in pieces]


def _link(loads: Loads, device: int) -> tuple[float, float, bool]:
    """Latency and seconds a byte of the quickest way from a device, and whether it keeps the device itself busy."""
    ways = [hops for d, hops in enumerate(loads.routes[device]) if hops and d != device]
    if not ways:
        return 0.0, 0.0, False
    way = min(ways, key=lambda hops: (sum(h.s_per_byte for h in hops), sum(h.latency_s for h in hops)))
    own = [hop for hop in way if device in hop.resources]
    if own:
        return own[0].latency_s, own[0].s_per_byte, True
    if any(hop.resources for hop in way):
        return way[0].latency_s, way[0].s_per_byte, False
    return 0.0, 0.0, False


def _sequences(kinds: list[list[int]]) -> list[list[int]]:
    """Orders of the devices: alike ones side by side, and each kind of few at every place among the rest."""
    plain = [d for kind in kinds for d in kind]
    found = {tuple(plain), tuple(plain[::-1])}
    for kind in kinds:
        rest = [d for d in plain if d not in kind]
        for place in range(len(rest) + 1):
            found.add((*rest[:place], *kind, *rest[place:]))
    return [list(sequence) for sequence in sorted(found)][:24]


def _split(costs: list[Floats]) -> list[tuple[int, int]] | None:
    """For each device of a sequence the segment it takes, so that the largest cost is smallest; None without any."""
    length = len(costs[0]) - 1
    best = np.full(length + 1, np.inf)
    best[0] = 0.0
    # A device may stay without work: an empty segment costs nothing.
    since: list[Sequence[int]] = []
    for cost in costs:
        weighed = np.maximum(best[:, None], cost)
        weighed[np.tril_indices(length + 1, -1)] = np.inf
        weighed[np.diag_indices(length + 1)] = best
        start = weighed.argmin(axis=0)
        best = weighed[start, np.arange(length + 1)]
        since.append(start)
    if not best[length] < np.inf:
        return None
    cuts, end = [], length
    for start in reversed(since):
        cuts.append((int(start[end]), end))
        end = int(start[end])
    return cuts[::-1]


def _anneal(
    loads: Loads, stand: Standing, hot: float, steps: int, draw: random.Random, until: float
) -> tuple[list[int] | None, float, bool]:
    """The best placement met, its period, and whether time ran out."""
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
    steps = min(steps, PAIRS * loads.groups * loads.groups)
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
    """Groups that share a value with each group; of a value with many readers only its maker and one next to it."""
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
    """Groups to move and where to."""
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
