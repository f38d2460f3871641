"""A problem as plain lists, which is what one candidate schedule after another is timed from."""

from __future__ import annotations

import math

from ..problem import Problem
from .again import repeatable
from .rank import cost_to_go

Hops = tuple[tuple[int, int, int, float, float], ...]
"""A way: wire, copy queue, next device, latency in seconds and seconds per byte of each hop."""


class Network:
    """R runs on D devices with W wires and copy queues; W stands for no wire and for no queue.

    `makes[r]` holds (value, `readers` of it, devices it must come to) of run r, and of what is there before the call
    for R.
    `hops[s][d]` is the way from a device to another, and for `bytes[v]` of a value all of it takes `latency[s][d]` and
    `s_per_byte[s][d]` for each of them, inf without one. `later[r]` are runs that wait for r without reading from
    it, `sooner[r]` those it so waits for, and `waits[r]` is how many values and runs it waits for. `near[r]` are all
    runs beside it. `to_go[r][d]` are the seconds from its end on a device to the end of the graph, at best.
    `repeatable[r]`: it may be computed on several devices; `run`, `numbers`, `on` and `each` are those of
    `copies.Served` where none is.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.runs = problem.runs
        everywhere = range(len(problem.devices))
        self.devices = len(problem.devices)
        self.lanes = [len(names) for names in problem.lane_names]
        self.seconds, self.to_go = problem.seconds, cost_to_go(problem)
        given = [v for v, maker in enumerate(problem.maker) if maker < 0]
        self.readers = [tuple(own) for own in problem.readers]
        self.makes = [
            [(v, self.readers[v], tuple(problem.deliver[v])) for v in own] for own in (*problem.makes, given)
        ]
        self.sooner, self.later = _unread(problem)
        self.waits = [len(reads) + len(own) for reads, own in zip(problem.reads, self.sooner)]
        self.near = [[*dict.fromkeys((*a, *b))] for a, b in zip(problem.before, problem.after)]
        self.repeatable = [repeatable(problem.costed, run) for run in problem.costed.runs]
        self.numbers = self.run = range(self.runs)
        self.on: dict[tuple[int, int], int] = {}
        self.each: dict[int, tuple[int, ...]] = {}
        self.wires = problem.wires + len(problem.copy_lanes)
        self.bytes, self.latency, self.s_per_byte = problem.bytes, problem.latency, problem.s_per_byte
        self.hops = [[self._hops(s, d) for d in everywhere] for s in everywhere]

    def _hops(self, source: int, target: int) -> Hops:
        problem, none = self.problem, self.wires
        hops = problem.route[source][target]
        if hops is None:
            return ((none, none, target, math.inf, 0.0),)
        found = []
        for hop in hops:
            queue = problem.wires + hop.lane if hop.lane >= 0 else none
            wire, queue = (hop.wire, queue) if hop.wire >= 0 else (queue, none)
            found.append((wire, queue, hop.dst, hop.latency_s, hop.s_per_byte))
        return tuple(found)


def _unread(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """Of each run those it waits for without reading from them, and those that so wait for it; R is waited for by none.
    O(E)."""
    makers = [{problem.maker[v] for v in reads} for reads in problem.reads]
    order = [[p for p in earlier if p not in makers[r]] for r, earlier in enumerate(problem.before)]
    later: list[list[int]] = [[] for _ in range(problem.runs + 1)]
    for r, earlier in enumerate(order):
        for p in earlier:
            later[p].append(r)
    return order, later
