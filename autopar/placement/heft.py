"""List scheduling by earliest finish with insertion (HEFT), with copy queues, wires, the host and memory as
resources.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13(3), 2002.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..problem import Hop, Problem
from ..simulate import Move, Schedule
from .rank import cost_to_go, urgent_first
from .room import Room
from .slots import Slots, find_both


def heft(problem: Problem, room: float = 1.0) -> Schedule:
    """The classic: urgent runs first, each where it ends first."""
    return list_schedule(problem, "heft", urgent_first(problem), room=room)


def lookahead(problem: Problem, room: float = 1.0) -> Schedule:
    """Urgent runs first, each where its end and the best that can follow it come first."""
    return list_schedule(problem, "heft+lookahead", urgent_first(problem), cost_to_go(problem), room=room)


def list_schedule(
    problem: Problem,
    policy: str,
    order: Sequence[int],
    to_go: Sequence[Sequence[float]] | None = None,
    *,
    allowed: Sequence[Sequence[int]] | None = None,
    room: float = 1.0,
) -> Schedule:
    """Place runs in `order` (topological), each on the device of `allowed` where its end plus `to_go` is
    least.

    Memory caps, times `room`, are kept as far as the order of placing can tell; `simulate` has the last word.
    Near linear in runs, reads and devices.
    """
    work = _Work(problem, room)
    for r in order:
        work.place(r, (allowed or problem.allowed)[r], to_go[r] if to_go else None)
    return work.schedule(policy)


class _Work:
    """A schedule under way."""

    def __init__(self, problem: Problem, room: float) -> None:
        self.problem = problem
        self.queues = [[Slots() for _ in lanes] for lanes in problem.lane_names]
        self.copies = [Slots() for _ in problem.copy_lanes]
        self.wires = [Slots() for _ in range(problem.wires)]
        self.host = Slots()
        self.end = [0.0] * problem.runs
        # When each value is on each device that has it; the device it starts from comes first.
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
        self.placed: list[tuple[float, float, int, int, int, int]] = []
        self.moved: list[tuple[float, float, int, int, Hop]] = []
        self.chosen = [-1] * len(problem.members)
        self.device = [-1] * problem.runs
        self.room = Room(problem, room) if problem.tight else None

    def place(self, r: int, allowed: Sequence[int], to_go: Sequence[float] | None) -> None:
        """Put a run where it is best off, with the transfers it needs."""
        problem = self.problem
        group = problem.group[r]
        if group >= 0 and self.chosen[group] >= 0:
            allowed = (self.chosen[group],)
        if self.room:
            allowed = self.room.fitting(r, allowed, self.there)
        base = max((self.end[p] for p in problem.before[r]), default=0.0)
        best: tuple[float, int, int, float] | None = None
        for d in allowed:
            ready = self._arrival(r, d, base) if len(allowed) > 1 else 0.0
            lane, start = self._slot(r, d, ready)
            rest = max(to_go[d] if to_go else 0.0, self._carrying(r, d))
            score = start + problem.seconds[r][d] + rest
            if best is None or score < best[0]:
                best = (score, d, lane, start)
        assert best is not None
        _, d, lane, start = best
        ready = self._bring(r, d, base)
        if len(allowed) == 1 or ready > start:
            lane, start = self._slot(r, d, ready)
        length = problem.seconds[r][d]
        self.queues[d][lane].take(start, length)
        self.host.take(start, problem.dispatch[r])
        self.end[r] = start + length
        self.device[r] = d
        self.placed.append((start, start + length, len(self.placed), r, d, lane))
        if self.room:
            self.room.settle(r, d, self.there)
        for v in problem.makes[r]:
            self.there[v][d] = self.end[r]
        if group >= 0:
            self.chosen[group] = d

    def _carrying(self, r: int, d: int) -> float:
        """Seconds that new values of carried state need from a device to their home and to all that read it."""
        problem, longest = self.problem, 0.0
        for v in problem.makes[r]:
            if problem.carry[v]:
                wanted = {*problem.deliver[v], *(self.device[h] for h in problem.carry[v])} - {-1}
                longest = max(longest, *(problem.travel(v, d, e) for e in wanted))
        return longest

    def _slot(self, r: int, d: int, ready: float) -> tuple[int, float]:
        length, dispatch = self.problem.seconds[r][d], self.problem.dispatch[r]
        found = (0, math.inf)
        if ready == math.inf:
            return found
        for lane, queue in enumerate(self.queues[d]):
            start = find_both(queue, length, self.host, dispatch, ready)
            if start < found[1]:
                found = (lane, start)
        return found

    def _arrival(self, r: int, d: int, ready: float) -> float:
        """When all a run reads would be on a device; transfers not yet decided are queued one behind the
        other."""
        last: dict[int, float] = {}
        for v in self.problem.reads[r]:
            there = self.there[v]
            if d in there:
                ready = max(ready, there[d])
                continue
            source, time = self._source(v)
            hops = self.problem.route[source][d]
            if hops is None:
                return math.inf
            for hop in hops:
                if hop.dst in there:
                    time = there[hop.dst]
                    continue
                seconds = hop.seconds(self.problem.bytes[v])
                time = self._copy_slot(hop, seconds, max(time, last.get(hop.lane, 0.0))) + seconds
                last[hop.lane] = time
            ready = max(ready, time)
        return ready

    def _bring(self, r: int, d: int, ready: float) -> float:
        """Reserve the transfers that bring all a run reads to its device; when the last of them ends."""
        for v in self.problem.reads[r]:
            ready = max(ready, self._send(v, d))
        return ready

    def _send(self, v: int, d: int) -> float:
        """Reserve the transfer of a value to a device unless it is there; when it is there."""
        there = self.there[v]
        if d in there:
            return there[d]
        source, time = self._source(v)
        hops = self.problem.route[source][d]
        if hops is None:
            return math.inf
        for hop in hops:
            if hop.dst not in there:
                seconds = hop.seconds(self.problem.bytes[v])
                start = self._copy_slot(hop, seconds, time)
                self.copies[hop.lane].take(start, seconds)
                if hop.wire >= 0:
                    self.wires[hop.wire].take(start, seconds)
                there[hop.dst] = start + seconds
                self.moved.append((start, start + seconds, len(self.moved), v, hop))
                if self.room:
                    self.room.copy(v, hop.dst)
            time = there[hop.dst]
        return time

    def _source(self, v: int) -> tuple[int, float]:
        """The device a value comes from, and from when on: after all placed runs that change it in place."""
        source, time = next(iter(self.there[v].items()))
        if v in self.problem.changes:
            time = max(time, *(self.end[r] for _, r in self.problem.changes[v]))
        return source, time

    def _copy_slot(self, hop: Hop, seconds: float, ready: float) -> float:
        queue = self.copies[hop.lane]
        if hop.wire < 0:
            return queue.find(ready, seconds)
        return find_both(queue, seconds, self.wires[hop.wire], seconds, ready)

    def schedule(self, policy: str) -> Schedule:
        """The orders it came to, deliveries to the caller, and to where state is carried, at last."""
        problem = self.problem
        for v, devices in enumerate(problem.deliver):
            for d in dict.fromkeys((*devices, *(self.device[r] for r in problem.carry[v]))):
                self._send(v, d)
        lanes: dict[str, list[str]] = {lane: [] for names in problem.lane_names for lane in names}
        for _, _, _, r, d, lane in sorted(self.placed):
            lanes[problem.lane_names[d][lane]].append(problem.names[r])
        copies: dict[str, list[Move]] = {name: [] for name in problem.copy_lanes}
        for _, _, _, v, hop in sorted(self.moved, key=lambda move: move[:4]):
            ends = problem.devices[hop.src], problem.devices[hop.dst]
            copies[problem.copy_lanes[hop.lane]].append((problem.values[v], *ends))
        return Schedule(
            policy,
            {lane: tuple(names) for lane, names in lanes.items()},
            {lane: tuple(moves) for lane, moves in copies.items()},
        )
