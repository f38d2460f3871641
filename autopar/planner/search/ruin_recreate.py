"""Some runs taken out of a schedule and placed anew, one after the other: ruin and recreate.

Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record breaking optimization results using the ruin and recreate
principle", Journal of Computational Physics 159, 2000.
"""

from __future__ import annotations

import math

from .moves import Neighbourhood

PART = 0.5
"""Share of the runs that are taken out at most."""
AHEAD = (0.0, 0.5, 1.0, 1.0)
"""Weights of what is still to come, in where a run goes."""
STAY = (0.0, 0.0, 0.1, 0.5)
"""Weights of the seconds spent on copies, in where a run goes."""


def rebuilt(beside: Neighbourhood, run: int, heat: float) -> tuple[list[int] | None, int]:
    """The devices with some runs around one placed anew, None if nothing changes, and how many places were tried.

    In the order at hand each goes where it ends soonest, with what then follows on the devices of those that stay, give
    or take `heat` seconds.
    """
    free, draw = _freed(beside, run), beside.draw
    order = sorted(beside.now.served.numbers, key=beside.keys.__getitem__)
    first = min(int(beside.keys[r]) for r in free)
    made = _Made(beside, order, first)
    ahead, stay = (weights[int(draw.random() * len(weights))] for weights in (AHEAD, STAY))
    places = 0
    for r in order[first:]:
        if r >= beside.network.runs:
            continue
        places += 1
        if r not in free:
            made.put(r, beside.device[r])
            continue
        least, best = math.inf, -1
        places += len(beside.problem.allowed[r])
        for d in beside.problem.allowed[r]:
            end, copying = made.tried(r, d)
            score = end + ahead * made.after(r, d, free) + stay * copying + heat * draw.random()
            if score < least:
                least, best = score, d
        if best < 0:
            return None, places
        made.put(r, best)
    return made.device if made.device != beside.device else None, places


def _freed(beside: Neighbourhood, run: int) -> set[int]:
    """Runs around one: a stretch of the order, or some that are joined to it."""
    draw, runs = beside.draw, beside.network.runs
    size = 2 * max(1.0, PART * runs / 2) ** draw.random()
    if draw.random() < 0.5:
        low = max(0, int(beside.keys[run] - size * draw.random()))
        return {run, *(r for r, key in enumerate(beside.keys[:runs]) if low <= key <= low + int(size))}
    found, edge = {run}, [run]
    while edge and len(found) < size:
        r = edge.pop(int(draw.random() * len(edge)))
        for other in beside.network.near[r]:
            if other not in found and len(found) < size:
                found.add(other)
                edge.append(other)
    return found


class _Made:
    """The schedule at hand up to the run `first` of its order, and what is put behind it, each with its copies when it
    is put: an estimate, for wires serve who asks first."""

    def __init__(self, beside: Neighbourhood, order: list[int], first: int) -> None:
        self.network, self.problem, self.now = beside.network, beside.problem, beside.now
        now, none = self.now, self.network.wires
        self.device, self.end = [*now.device], [*now.end]
        self.since = now.start[order[first]]
        self.free = [[0.0] * count for count in self.network.lanes]
        for r in order[:first]:
            self.free[self.device[r]][now.lane[r]] = self.end[r]
        self.old = set(order[:first])
        self.there: dict[int, dict[int, float]] = {}
        self.busy = [0.0] * (none + 1)
        for *_, wire, queue, _, came in now.sent:
            if came <= self.since:
                self.busy[wire], self.busy[queue] = max(self.busy[wire], came), max(self.busy[queue], came)

    def tried(self, run: int, device: int) -> tuple[float, float]:
        """When a run would end on a device, and the seconds of the copies that it would need."""
        ready, copying, _ = self._ready(run, device)
        return max(ready, min(self.free[device])) + self.network.seconds[run][device], copying

    def after(self, run: int, device: int, free: set[int]) -> float:
        """Seconds from the end of a run on a device to the end of all, as far as what reads from it stays."""
        seconds, tail, where = self.network.seconds, self.now.tail, self.now.device
        longest = self.network.to_go[run][device]
        first, each = self.network.latency[device], self.network.s_per_byte[device]
        for v, readers, _ in self.network.makes[run]:
            nbytes = self.network.bytes[v]
            for r in readers:
                if r not in free:
                    d = where[r]
                    longest = max(longest, seconds[r][d] + tail[r] + (first[d] + nbytes * each[d]))
        return longest

    def put(self, run: int, device: int) -> None:
        """Place a run, with the copies that it needs."""
        ready, _, sent = self._ready(run, device)
        for v, wire, came in sent:
            self.there[v][device] = came
            self.busy[wire] = max(self.busy[wire], came)
        lanes = self.free[device]
        begin = min(lanes)
        self.device[run], self.end[run] = device, max(ready, begin) + self.network.seconds[run][device]
        lanes[lanes.index(begin)] = self.end[run]
        for v in self.problem.makes[run]:
            # What a copy of the run serves may have come before it.
            self.there.pop(v, None)

    def _ready(self, run: int, device: int) -> tuple[float, float, list[tuple[int, int, float]]]:
        """When all that a run reads can be on a device, the seconds of the copies for it, and these: value, wire and
        when it is there."""
        network, none = self.network, self.network.wires
        ready, copying = max([self.end[r] for r in network.sooner[run]], default=0.0), 0.0
        sent = []
        for v in self.problem.reads[run]:
            there = self.there.get(v) or self._held(v)
            came = there.get(device)
            if came is None:
                maker = self.problem.maker[v]
                copy = self.now.served.on.get((maker, device))
                if copy is not None:
                    ready = max(ready, self.now.end[copy])
                    continue
                source = self.device[maker] if maker >= 0 else self.problem.home[v]
                wire = network.hops[source][device][0][0]
                takes = (
                    network.latency[source][device] + network.bytes[v] * network.s_per_byte[source][device]
                )
                came = max(there[source], self.busy[wire] if wire < none else 0.0) + takes
                copying += takes
                sent.append((v, wire, came))
            ready = max(ready, came)
        return ready, copying, sent

    def _held(self, value: int) -> dict[int, float]:
        """When a value is where, and remember it."""
        maker = self.problem.maker[value]
        held = {self.device[maker]: self.end[maker]} if maker >= 0 else {self.problem.home[value]: 0.0}
        if maker < 0 or maker in self.old:
            held |= {d: came for d, came in self.now.there.get(value, {}).items() if came <= self.since}
        self.there[value] = held
        return held
