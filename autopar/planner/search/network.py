"""A problem as plain lists, which is what one candidate schedule after another is timed from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ir.costed import repeatable
from ..lists.ranking import cost_to_go
from ..model.problem import Problem

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


Made = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A value, what it serves, and the devices it must come to."""


class Served:
    """A network of R runs with copies: number R + 1 + i is one of run `of[i]`, on the device that the list says, and R
    stands for what no run makes.

    `run[i]` is what number i computes, `numbers` has those of all runs and copies, `on[r, d]` that of the copy of a run
    on a device, and `each[r]` those of a run and its copies, where it has any. `seconds`, `makes`, `later` and `waits`
    are as in `Network`, by number, with what each serves as readers; `readers[v]` are those that the run serves.
    """

    def __init__(self, network: Network, device: Sequence[int], of: Sequence[int]) -> None:
        runs = network.runs
        self.run = [*range(runs + 1), *of]
        self.numbers = [*range(runs), *range(runs + 1, len(self.run))]
        self.on = {(r, device[i]): i for i, r in enumerate(of, runs + 1)}
        self.each: dict[int, tuple[int, ...]] = {r: (r,) for r in of}
        for (r, _), i in sorted(self.on.items()):
            self.each[r] += (i,)
        self.seconds = [*network.seconds, (), *(network.seconds[r] for r in of)]
        self.waits = [*network.waits, 0, *(network.waits[r] for r in of)]
        # Nothing waits for a copy but what reads from it.
        self.later = [*network.later, *([] for _ in of)]
        read = [[i for r in readers for i in self.each.get(r, (r,))] for readers in network.readers]
        self.readers = [*network.readers]
        self.makes: list[list[Made]] = []
        for r, own in enumerate(network.makes):
            for v, _, _ in own:
                self.readers[v] = tuple(i for i in read[v] if (r, device[i]) not in self.on)
            left = [(v, self.readers[v], tuple(d for d in to if (r, d) not in self.on)) for v, _, to in own]
            self.makes.append([*left])
        for i, r in enumerate(of, runs + 1):
            here = [(v, tuple(j for j in read[v] if device[j] == device[i])) for v, _, _ in network.makes[r]]
            self.makes.append([(v, readers, ()) for v, readers in here])
