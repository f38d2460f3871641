"""Many list schedules at once: every step of the decoder places one run of each candidate, with numpy.

A candidate is an order of the runs, for some of them a device, and how much what is still to come counts. Each
run goes where it ends first (HEFT; Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002), plus the optimistic cost of
what follows (PEFT; Arabnejad and Barbosa, IEEE TPDS 25(3), 2014). Queues and wires remember a few gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..simulate import Schedule
from .orders import in_order
from .tables import Floats, Ints, Tables

FAR = 1e300
"""Seconds that stand for a way that is not there; what has no schedule takes so long or longer."""
GAPS = 3
"""Gaps remembered of each device, all its queues together."""


@dataclass(frozen=True)
class Candidates:
    """K schedules to be decoded: `order` (K, R) topological, `fixed` (K, R) devices (-1: where it ends first),
    `ahead` (K) the weight of what is still to come, `stay` (K) that of the seconds its copies take."""

    order: Ints
    fixed: Ints
    ahead: Floats
    stay: Floats

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class Decoded:
    """What came out: `makespan` (K), `start` and `end` (K, R) in seconds, `device` and `lane` (K, R),
    `sent` (K, V, D) when each copy set out, inf without one."""

    makespan: Floats
    start: Floats
    end: Floats
    device: Ints
    lane: Ints
    sent: Floats


def decode(tables: Tables, candidates: Candidates, to_go: Floats | None = None) -> Decoded:
    """Decode all candidates; O(K R (reads + D)) in R vectorised steps. `to_go` (R, D) in seconds."""
    work = _Work(tables, len(candidates))
    for step in range(tables.runs):
        work.place(candidates.order[:, step], candidates, to_go)
    work.deliver()
    count, runs = len(candidates), tables.runs
    start, end = (a.reshape(count, runs + 1)[:, :runs] for a in (work.start, work.end))
    device, lane = (a.reshape(count, runs + 1)[:, :runs] for a in (work.device, work.lane))
    sent = work.sent.reshape(count, tables.values + 1, tables.devices)[:, :-1]
    return Decoded(np.maximum(end.max(axis=1, initial=0.0), work.last), start, end, device, lane, sent)


class _Work:
    """Candidates under way. Arrays are flat, indexed by row first: numpy takes from these quickest."""

    def __init__(self, tables: Tables, count: int) -> None:
        self.tables = tables
        runs, devices, values = tables.runs, tables.devices, tables.values
        self.rows = np.arange(count)
        self.of_value = self.rows * (values + 1)
        self.of_run = self.rows * (runs + 1)
        self.of_device = self.rows * devices
        self.of_wire = self.rows * (tables.wires + 1)
        there = np.full((count, values + 1, devices), math.inf)
        at_home = np.flatnonzero(tables.home[:-1] >= 0)
        there[:, at_home, tables.home[at_home]] = 0.0
        there[:, values] = 0.0
        self.there = there.reshape(-1, devices)
        self.sent = np.full(there.size, math.inf)
        self.since = np.zeros(count * (values + 1))
        self.source = np.tile(tables.home, count)
        self.start = np.zeros(count * (runs + 1))
        self.end = np.zeros(count * (runs + 1))
        self.device = np.zeros(count * (runs + 1), dtype=np.int64)
        self.lane = np.zeros(count * (runs + 1), dtype=np.int64)
        lanes = int(tables.lanes.max())
        free = np.where(np.arange(lanes) < tables.lanes[:, None], 0.0, math.inf)
        self.free = np.tile(free, (count, 1))
        self.opens = np.full((count * devices, GAPS), math.inf)
        self.closes = np.full((count * devices, GAPS), -math.inf)
        self.owner = np.zeros((count * devices, GAPS), dtype=np.int64)
        self.wire_free = np.zeros((count, tables.wires + 1))
        self.wire_opens = np.full((count, tables.wires + 1), math.inf)
        self.wire_closes = np.full((count, tables.wires + 1), -math.inf)
        self.chosen = np.full((count, max(1, tables.groups)), -1)
        self.last = np.zeros(count)
        # Times are added and subtracted: of two infinite ones the difference would be no number.
        self.latency = np.minimum(tables.latency, FAR)
        self.way_latency = np.minimum(tables.way_latency, FAR)

    def place(self, run: Ints, candidates: Candidates, to_go: Floats | None) -> None:
        tables, rows = self.tables, self.rows
        widest = int(tables.read_count.take(run).max())
        reads = tables.reads.take(run, axis=0)[:, :widest]
        waits = int(tables.before_count.take(run).max())
        if waits:
            earlier = self.of_run[:, None] + tables.before.take(run, axis=0)[:, :waits]
            ready = self.end.take(earlier).max(axis=1)
        else:
            ready = np.zeros(len(rows))
        device = candidates.fixed[rows, run]
        if tables.groups:
            group = tables.group.take(run)
            chosen = np.where(group >= 0, self.chosen[rows, group], -1)
            device = np.where(chosen >= 0, chosen, device)
        if device.min() < 0:
            device = self._choose(run, reads, ready, device, candidates, to_go)
        if widest > 1:
            since = self.since.take(self.of_value[:, None] + reads)
            reads = np.take_along_axis(reads, since.argsort(axis=1, kind="stable"), axis=1)
        for j in range(widest):
            ready = np.maximum(ready, self._send(rows, reads[:, j], device))
        self._take(run, device, ready)
        if tables.groups:
            grouped = group >= 0
            self.chosen[rows[grouped], group[grouped]] = device[grouped]

    def _choose(
        self, run: Ints, reads: Ints, base: Floats, fixed: Ints, candidates: Candidates, to_go: Floats | None
    ) -> Ints:
        """Where each run ends first: copies set out as soon as their wire is free, each alone."""
        tables, count = self.tables, len(self.rows)
        ready = base[:, None]
        moved = np.zeros((count, tables.devices))
        for j in range(reads.shape[1]):
            value = reads[:, j]
            at = self.of_value + value
            source = self.source.take(at)
            wires = tables.wire.take(source, axis=0)
            wires += self.of_wire[:, None]
            arrival = self.wire_free.take(wires)
            np.maximum(arrival, self.since.take(at)[:, None], out=arrival)
            travel = tables.bytes.take(value)[:, None] * tables.way_s_per_byte.take(source, axis=0)
            travel += self.way_latency.take(source, axis=0)
            arrival += travel
            there = self.there.take(at, axis=0)
            here = there < math.inf
            ready = np.maximum(ready, np.where(here, there, arrival))
            moved += np.where(here, 0.0, travel)
        seconds = tables.seconds.take(run, axis=0)
        devices = tables.devices
        start = np.maximum(ready, self.free.min(axis=1).reshape(count, devices))
        gap = np.maximum(self.opens.reshape(count, devices, GAPS), ready[:, :, None])
        late = gap + seconds[:, :, None] > self.closes.reshape(count, devices, GAPS)
        gap[late] = math.inf
        score = np.minimum(start, gap.min(axis=2)) + seconds
        if to_go is not None:
            score += candidates.ahead[:, None] * to_go.take(run, axis=0)
        score += candidates.stay[:, None] * moved
        return np.where(fixed >= 0, fixed, score.argmin(axis=1))

    def _send(self, rows: Ints, value: Ints, device: Ints) -> Floats:
        """Bring a value of each of these candidates to a device unless it is there; when it is there."""
        devices = self.tables.devices
        cell = (self.of_value.take(rows) + value) * devices + device
        arrival = self.there.take(cell)
        absent = np.flatnonzero(arrival == math.inf)
        if not len(absent):
            return arrival
        at = rows[absent]
        value, device, cell = value[absent], device[absent], cell[absent]
        held = self.of_value[at] + value
        source, since = self.source[held], self.since[held]
        there = self.there.reshape(-1)
        if self.tables.indirect:
            middle = self.tables.via[source, device]
            stop = held * devices + middle
            known = there[stop]
            two = np.flatnonzero((middle != device) & (known == math.inf))
            if len(two):
                known[two] = self._hop(at[two], value[two], source[two], middle[two], since[two], stop[two])
                there[stop[two]] = known[two]
            since = np.where(middle != device, known, since)
            source = np.where(middle != device, middle, source)
        there[cell] = arrival[absent] = self._hop(at, value, source, device, since, cell)
        return arrival

    def _hop(self, at: Ints, value: Ints, source: Ints, device: Ints, since: Floats, cell: Ints) -> Floats:
        tables = self.tables
        leg = source * tables.devices + device
        wire = tables.wire.take(leg)
        length = self.latency.take(leg) + tables.bytes.take(value) * tables.s_per_byte.take(leg)
        wire = self.of_wire.take(at) + wire
        if tables.queued:
            # Gaps of a wire are none of its queues': a copy that needs both goes behind the last of each.
            queue = self.of_wire.take(at) + tables.queue.take(leg)
            since = np.maximum(since, np.maximum(self.wire_free.take(wire), self.wire_free.take(queue)))
        free_at, opens_at, closes_at = (
            array.reshape(-1) for array in (self.wire_free, self.wire_opens, self.wire_closes)
        )
        free, opens, closes = free_at.take(wire), opens_at.take(wire), closes_at.take(wire)
        inside = np.maximum(since, opens)
        fits = inside + length <= closes
        start = np.where(fits, inside, np.maximum(since, free))
        end = start + length
        # Of the two pieces left of a gap the larger stays, and so it does of an old gap and a new one.
        after = closes - end > start - opens
        fresh = ~fits & (start - free > np.maximum(closes - opens, 0.0))
        opens_at[wire] = np.where(fresh, free, np.where(fits & after, end, opens))
        closes_at[wire] = np.where(fresh, start, np.where(fits & ~after, start, closes))
        free_at[wire] = np.where(fits, free, end)
        if tables.queued:
            free_at[queue] = end
        self.wire_free[:, tables.wires] = 0.0
        self.wire_closes[:, tables.wires] = -math.inf
        self.sent[cell] = start
        return end

    def _take(self, run: Ints, device: Ints, ready: Floats) -> None:
        tables, rows = self.tables, self.rows
        seconds = tables.seconds.take(run * tables.devices + device)
        place = self.of_device + device
        free = self.free.take(place, axis=0)
        start = np.maximum(ready, free.min(axis=1))
        # The queue that has been free for the shortest time, so that the longer gaps stay.
        lane = np.where(free <= start[:, None], free, -1.0).argmax(axis=1)
        opens, closes = self.opens.take(place, axis=0), self.closes.take(place, axis=0)
        inside = np.maximum(opens, ready[:, None])
        inside[inside + seconds[:, None] > closes] = math.inf
        which = inside.argmin(axis=1)
        slot = rows * GAPS + which
        first = inside.take(slot)
        fits = first < start
        if fits.any():
            start = np.where(fits, first, start)
            end = start + seconds
            lane = np.where(fits, self.owner.take(place * GAPS + which), lane)
            opened, closed = opens.take(slot), closes.take(slot)
            # A gap that is used gives way to its larger piece.
            after = closed - end > start - opened
            used = np.flatnonzero(fits)
            gap = (place * GAPS + which)[used]
            self.opens.reshape(-1)[gap] = np.where(after, end, opened)[used]
            self.closes.reshape(-1)[gap] = np.where(after, closed, start)[used]
        else:
            end = start + seconds
        queue = place * self.free.shape[1] + lane
        was_free = self.free.take(queue)
        idle = ~fits & (start > was_free)
        if idle.any():
            # A new one takes the place of the smallest, if it is larger.
            length = np.maximum(closes - opens, -1.0)
            smallest = length.argmin(axis=1)
            fresh = np.flatnonzero(idle & (start - was_free > length.take(rows * GAPS + smallest)))
            gap = (place * GAPS + smallest)[fresh]
            self.opens.reshape(-1)[gap] = was_free[fresh]
            self.closes.reshape(-1)[gap] = start[fresh]
            self.owner.reshape(-1)[gap] = lane[fresh]
        self.free.reshape(-1)[queue] = np.where(fits, was_free, end)
        at = self.of_run + run
        self.start[at], self.end[at], self.device[at], self.lane[at] = start, end, device, lane
        for j in range(int(tables.make_count.take(run).max())):
            held = self.of_value + tables.makes[run, j]
            self.there.reshape(-1)[held * tables.devices + device] = end
            self.since[held] = end
            self.source[held] = device
        if tables.padded:
            padding = self.of_value + tables.values
            self.there[padding] = 0.0
            self.since[padding] = 0.0

    def deliver(self) -> None:
        """Send what the caller wants to where it is wanted."""
        for value, device in self.tables.deliver:
            arrival = self._send(self.rows, np.full(len(self.rows), value), np.full(len(self.rows), device))
            self.last = np.maximum(self.last, arrival)


def schedule(tables: Tables, decoded: Decoded, row: int, policy: str, copies: bool = True) -> Schedule:
    """One decoded candidate as the orders of its queues, those of `copies` too."""
    problem = tables.problem
    order = np.lexsort((np.arange(tables.runs), decoded.end[row], decoded.start[row]))
    runs = ((r, int(decoded.device[row, r]), (int(decoded.lane[row, r]),)) for r in order.tolist())
    if not copies:
        return in_order(problem, policy, runs)
    sent = decoded.sent[row]
    moved = np.argwhere(sent < math.inf)
    moves = []
    for at in np.lexsort((moved[:, 0], sent[moved[:, 0], moved[:, 1]])).tolist():
        v, d = moved[at].tolist()
        maker = problem.maker[v]
        source = int(decoded.device[row, maker]) if maker >= 0 else problem.home[v]
        moves += [(v, hop) for hop in problem.route[source][d] or () if hop.dst == d]
    return in_order(problem, policy, runs, moves)
