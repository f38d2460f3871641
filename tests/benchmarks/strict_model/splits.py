"""Contiguous splits of the order of the graph, one piece for each device, so that the largest load is smallest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar.planner.throughput.loads import Loads

from .contiguous import Floats, crossing, spread

WIDEST = 480
"""Positions of an order that splits are weighed for; longer orders are cut into pieces of equal work."""


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
    own = [hop for hop in way if device in (hop.lane, hop.wire)]
    if own:
        return own[0].latency_s, own[0].s_per_byte, True
    if any(hop.lane >= 0 or hop.wire >= 0 for hop in way):
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
