"""Many schedules at once as wires serve them that nobody holds back: who asks first has a wire first.

`batch.decode` books copies when their readers are placed, into gaps of the wires too. What is kept of a plan are its
placement and the orders of its queues: here are the times that these lead to.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .batch import FAR, Candidates, Decoded, decode
from .tables import Bools, Floats, Ints, Tables


def carried_out(tables: Tables, candidates: Candidates, to_go: Floats | None = None) -> Decoded:
    """`decode`, with the times that remain of it where copies go by their wires alone."""
    decoded = decode(tables, candidates, to_go)
    return served(tables, decoded) if tables.first_come else decoded


def served(tables: Tables, decoded: Decoded) -> Decoded:
    """The same devices and orders of runs, with everything as early as it can be; `sent` is that of `decoded`.

    Runs end in the order of time, so that copies ask for their wires in the order in which values are made. Second
    hops of a way ask with the first; `simulate` has the last word. O(K R (lanes + readers + D)) in R vectorised steps.
    """
    return _Served(tables, decoded).times()


FOREVER = 1 << 62
"""What the run that stands for none waits for."""


class _Served:
    """Schedules under way. Arrays are flat, indexed by row first."""

    def __init__(self, tables: Tables, decoded: Decoded) -> None:
        self.tables, self.decoded = tables, decoded
        count, runs = decoded.device.shape
        devices, values = tables.devices, tables.values
        self.count, self.rows = count, np.arange(count)
        self.of_run = self.rows * (runs + 1)
        self.of_wire = self.rows * (tables.wires + 1)
        own = np.zeros((count, runs + 1), dtype=np.int64)
        own[:, :runs] = decoded.device
        self.device = own.reshape(-1)
        self.length = np.zeros((count, runs + 1))
        self.length[:, :runs] = np.take_along_axis(
            np.broadcast_to(tables.seconds, (count, runs, devices)), decoded.device[:, :, None], axis=2
        )[:, :, 0]
        self.length = self.length.reshape(-1)
        self.wanted = self._wanted()
        self.there = np.full(count * (values + 1) * devices, math.inf)
        self.of_value = self.rows * (values + 1)
        self.wire_free = np.zeros(count * (tables.wires + 1))
        self.ready = np.zeros(count * (runs + 1))
        self.end = np.zeros(count * (runs + 1))
        self.missing = np.tile(np.append(tables.waits, FOREVER), count)
        self._queues()
        self._bring()

    def _wanted(self) -> Bools:
        """(K, V + 1, D): where each value is wanted."""
        tables = self.tables
        found = np.zeros((self.count, tables.values + 1, tables.devices), dtype=bool)
        for v in range(tables.values):
            own = tables.problem.readers[v]
            if own:
                found[self.rows[:, None], v, self.decoded.device[:, own]] = True
        for v, d in tables.deliver:
            found[:, v, d] = True
        return found

    def _queues(self) -> None:
        """The runs of each queue in order, as positions in one list a row, and where each queue begins and ends."""
        tables, decoded = self.tables, self.decoded
        widest = int(tables.lanes.max())
        queue = decoded.device * widest + decoded.lane
        count, runs = queue.shape
        # Of a list that has no schedule the times are no order; that of the graph is one.
        lost = ~(decoded.makespan < FAR)[:, None]
        start, end = (np.where(lost, np.arange(runs), times) for times in (decoded.start, decoded.end))
        order = np.lexsort((end, start, queue), axis=1)
        self.order = np.full((count, runs + 1), runs)
        self.order[:, :runs] = order
        self.order = self.order.reshape(-1)
        queues = np.arange(tables.devices * widest)
        self.last = (queue[:, :, None] <= queues).sum(axis=1)
        self.head = np.concatenate([np.zeros((count, 1), dtype=np.int64), self.last[:, :-1]], axis=1)
        self.free = np.zeros(self.head.shape)

    def _bring(self) -> None:
        """Send what is there before the call to where it is wanted."""
        tables = self.tables
        for v in np.flatnonzero(tables.home[:-1] >= 0).tolist():
            at_home = np.full(self.count, tables.home[v])
            self._made(np.full(self.count, v), at_home, np.zeros(self.count))

    def times(self) -> Decoded:
        tables, rows = self.tables, self.rows
        start = np.zeros_like(self.end)
        for _ in range(tables.runs):
            heads = self.order.take(self.of_run[:, None] + np.minimum(self.head, tables.runs))
            heads[self.head >= self.last] = tables.runs
            heads += self.of_run[:, None]
            # What can never be reached still has its turn.
            begin = np.minimum(np.maximum(self.ready.take(heads), self.free), FAR)
            ends = np.minimum(begin + self.length.take(heads), FAR)
            ends[self.missing.take(heads) > 0] = math.inf
            queue = ends.argmin(axis=1)
            at = heads[rows, queue]
            end = ends[rows, queue]
            start[at], self.end[at] = begin[rows, queue], end
            self.free[rows, queue] = end
            self.head[rows, queue] += 1
            self._finish(at - self.of_run, at, end)
        count, runs = self.decoded.device.shape
        start, ended = (a.reshape(count, runs + 1)[:, :runs] for a in (start, self.end))
        makespan = ended.max(axis=1, initial=0.0)
        for v, d in tables.deliver:
            makespan = np.maximum(makespan, self.there[(self.of_value + v) * tables.devices + d])
        return replace(self.decoded, makespan=makespan, start=start, end=ended)

    def _finish(self, run: Ints, at: Ints, end: Floats) -> None:
        tables = self.tables
        device = self.device.take(at)
        for j in range(int(tables.make_count.take(run).max(initial=0))):
            self._made(tables.makes[run, j], device, end)
        later = int(tables.later_count.take(run).max(initial=0))
        if later:
            self._ready(tables.later[run, :later], end[:, None])

    def _made(self, value: Ints, device: Ints, end: Floats) -> None:
        """Let a value of each row set out from a device, where it is from `end` on, and its readers wait no more."""
        tables = self.tables
        devices = tables.devices
        held = (self.of_value + value) * devices
        self.there[held + device] = end
        wanted = self.wanted.reshape(-1, devices).take(self.of_value + value, axis=0)
        wanted[self.rows, device] = False
        for d in np.flatnonzero(wanted.any(axis=0)).tolist():
            at = np.flatnonzero(wanted[:, d])
            self._send(at, value[at], device[at], d, end[at], held[at])
        count = int(tables.reader_count.take(value).max(initial=0))
        if count:
            readers = tables.readers.take(value, axis=0)[:, :count]
            where = self.device.take(self.of_run[:, None] + readers)
            self._ready(readers, self.there.take(held[:, None] + where))

    def _send(self, at: Ints, value: Ints, source: Ints, d: int, since: Floats, held: Ints) -> None:
        tables = self.tables
        nbytes = tables.bytes.take(value)
        while len(at):
            leg = source * tables.devices + d
            stop = tables.via.take(leg)
            known = self.there.take(held + stop)
            leg = source * tables.devices + stop
            wire = self.of_wire.take(at) + tables.wire.take(leg)
            limited = tables.wire.take(leg) < tables.wires
            begin = np.where(limited, np.maximum(since, self.wire_free.take(wire)), since)
            arrival = begin + tables.latency.take(leg) + nbytes * tables.s_per_byte.take(leg)
            fresh = known == math.inf
            arrival = np.where(fresh, arrival, known)
            self.wire_free[wire[fresh]] = arrival[fresh]
            self.there[held + stop] = arrival
            if not tables.indirect:
                return
            on = np.flatnonzero(stop != d)
            at, source, since, held, nbytes = at[on], stop[on], arrival[on], held[on], nbytes[on]

    def _ready(self, runs: Ints, time: Floats) -> None:
        """Each of these runs (K, widest; R where there is none) waits for one less, until `time`."""
        at = self.of_run[:, None] + runs
        self.ready[at] = np.maximum(self.ready.take(at), time)
        self.missing[at] -= 1
