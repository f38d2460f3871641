"""Many schedules at once as wires serve them that nobody holds back: who asks first has a wire first.

`batch.decode` books copies when their readers are placed, into gaps of the wires too. What is kept of a plan are its
placement and the orders of its queues: here are the times that these lead to.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .batch import FAR, Candidates, Decoded, decode
from .tables import Floats, Ints, Tables


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
        self.there = np.full(count * (values + 1) * devices, math.inf)
        self.of_value = self.rows * (values + 1)
        self.wire_free = np.zeros(count * (tables.wires + 1))
        self.ready = np.zeros(count * (runs + 1))
        self.end = np.zeros(count * (runs + 1))
        self.missing = np.tile(np.append(tables.waits, FOREVER), count)
        self._queues()
        self._sends()
        # What is there before the call is made by the run that stands for none.
        none = np.full(count, runs)
        self._finish(none, self.of_run + none, np.zeros(count))

    def _sends(self) -> None:
        """Which values each run must send where, run by run and row by row in one list."""
        tables = self.tables
        wanted = np.zeros((self.count, tables.values, tables.devices), dtype=bool)
        for v, own in enumerate(tables.problem.readers):
            wanted[self.rows[:, None], v, self.decoded.device[:, own]] = True
        for v, d in tables.deliver:
            wanted[:, v, d] = True
        row, value, target = np.nonzero(wanted)
        maker = tables.maker.take(value)
        at = row * (tables.runs + 1) + maker
        source = np.where(maker < tables.runs, self.device.take(at), tables.home.take(value))
        away = np.flatnonzero(source != target)
        away = away[np.argsort(at[away], kind="stable")]
        self.value, self.source, self.target = value[away], source[away], target[away]
        self.first = np.searchsorted(at[away], np.arange(self.count * (tables.runs + 1) + 1))

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
        """Let what a run of each row makes set out, and those that read it wait no more."""
        tables = self.tables
        devices = tables.devices
        for j in range(int(tables.make_count.take(run).max())):
            made = tables.makes[run, j]
            home = tables.home.take(made)
            here = np.where(home < 0, self.device.take(at), home)
            self.there[(self.of_value + made) * devices + here] = end
        first = self.first.take(at)
        count = self.first.take(at + 1) - first
        for turn in range(int(count.max())):
            rows = np.flatnonzero(count > turn)
            self._send(rows, first[rows] + turn, end[rows])
        for values, readers, widest in tables.reached:
            width = int(widest.take(run).max())
            if width:
                reader = readers.take(run, axis=0)[:, :width]
                held = self.of_value[:, None] + values.take(run, axis=0)[:, :width]
                where = self.device.take(self.of_run[:, None] + reader)
                self._ready(reader, self.there.take(held * devices + where))
        later = int(tables.later_count.take(run).max())
        if later:
            self._ready(tables.later[run, :later], end[:, None])

    def _send(self, at: Ints, number: Ints, since: Floats) -> None:
        """Carry out one of the sends of each of these rows."""
        tables = self.tables
        value, source, target = self.value[number], self.source[number], self.target[number]
        held = (self.of_value.take(at) + value) * tables.devices
        nbytes = tables.bytes.take(value)
        while len(at):
            leg = source * tables.devices + target
            if tables.indirect:
                stop = tables.via.take(leg)
                leg = source * tables.devices + stop
            else:
                stop = target
            wire = tables.wire.take(leg)
            shared = self.of_wire.take(at) + wire
            begin = np.where(wire < tables.wires, np.maximum(since, self.wire_free.take(shared)), since)
            arrival = begin + tables.latency.take(leg) + nbytes * tables.s_per_byte.take(leg)
            if not tables.indirect:
                self.wire_free[shared] = self.there[held + stop] = arrival
                return
            known = self.there.take(held + stop)
            fresh = known == math.inf
            arrival = np.where(fresh, arrival, known)
            self.wire_free[shared[fresh]] = arrival[fresh]
            self.there[held + stop] = arrival
            on = np.flatnonzero(stop != target)
            at, source, target, since = at[on], stop[on], target[on], arrival[on]
            held, nbytes = held[on], nbytes[on]

    def _ready(self, runs: Ints, time: Floats) -> None:
        """Each of these runs (K, widest; R where there is none) waits for one less, until `time`."""
        at = self.of_run[:, None] + runs
        self.ready[at] = np.maximum(self.ready.take(at), time)
        self.missing[at] -= 1
