"""A problem as numpy arrays, which is what many candidate schedules are decoded from at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Tables:
    """R runs, D devices, V values; row V of the values and row R of the runs are padding.

    `seconds` (R, D), inf where a run may not go. `reads` (R, widest) and `makes` (R + 1, widest; the last are those
    that are there before the call) hold values, padded with V; `maker` (V) is R where no run makes a value. `before`
    (R, widest) are the runs that are waited for without reading from them, `later` (R + 1, widest) those that so wait,
    padded with R; `waits` (R) is how many values and runs each waits for. `reached` are all (value, reader) of each
    row of `makes`, as `_layers` gives them.
    `wire` (D, D) is what limits the first hop of the way from one device to another: a wire, else a copy queue, else
    W, which limits nothing; `queue` (D, D) is the copy queue that limits it beside a wire.
    `via` (D, D) is where that hop ends. `latency` (inf without a link) and `s_per_byte` are of single hops.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count, devices, values = problem.runs, len(problem.devices), len(problem.values)
        self.runs, self.devices, self.values = count, devices, values
        self.seconds = np.full((count, devices), math.inf)
        for r, allowed in enumerate(problem.allowed):
            for d in allowed:
                self.seconds[r, d] = problem.seconds[r][d]
        self.lanes = np.array([len(lanes) for lanes in problem.lane_names])
        self.reads, self.read_count = padded(problem.reads, values)
        made = [*problem.makes, [v for v, home in enumerate(problem.home) if home >= 0]]
        self.makes, self.make_count = padded(made, values)
        self.maker = np.array([count if maker < 0 else maker for maker in problem.maker], dtype=np.int64)
        self.reached = _layers(
            [[(v, r) for v in own for r in problem.readers[v]] for own in made], values, count
        )
        # Whether a step that places different numbers of outputs writes into the padding.
        self.padded = len(set(self.make_count[:-1].tolist())) > 1
        order, later = unread(problem)
        self.before, self.before_count = padded(order, count)
        self.later, self.later_count = padded(later, count)
        self.waits = np.array([len(reads) + len(own) for reads, own in zip(problem.reads, order)])
        self.bytes = np.array([*problem.bytes, 0], dtype=np.float64)
        self.home = np.array([*problem.home, 0])
        self.group = np.array(problem.group or [-1])
        self.groups = len(problem.members)
        self.deliver = [(v, d) for v in range(values) for d in dict.fromkeys(problem.deliver[v])]
        self._ways()

    def _ways(self) -> None:
        problem, devices = self.problem, self.devices
        self.wires = problem.wires + len(problem.copy_lanes)
        self.latency = np.full((devices, devices), math.inf)
        self.s_per_byte = np.zeros((devices, devices))
        self.wire = np.full((devices, devices), self.wires)
        self.queue = np.full((devices, devices), self.wires)
        self.via = np.tile(np.arange(devices), (devices, 1))
        for s in range(devices):
            self.latency[s, s] = self.s_per_byte[s, s] = 0.0
            for d in range(devices):
                hops = problem.route[s][d]
                if not hops:
                    continue
                hop = hops[0]
                self.via[s, d] = hop.dst
                if hop.wire >= 0:
                    self.wire[s, d] = hop.wire
                    if hop.lane >= 0:
                        self.queue[s, d] = problem.wires + hop.lane
                elif hop.lane >= 0:
                    self.wire[s, d] = problem.wires + hop.lane
                for step in hops:
                    self.latency[step.src, step.dst] = step.latency_s
                    self.s_per_byte[step.src, step.dst] = step.s_per_byte
        # Where nobody can hold a copy back, what a plan promises must not depend on another order.
        self.first_come = self.wires > 0 and not problem.costed.machine.queued
        self.queued = bool((self.queue < self.wires).any())
        self.indirect = bool((self.via != np.arange(devices)[None, :]).any())
        # Whole ways, for estimates.
        self.way_latency = np.array(problem.latency, dtype=np.float64).reshape(devices, devices)
        self.way_s_per_byte = np.array(problem.s_per_byte, dtype=np.float64).reshape(devices, devices)


def unread(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """Of each run those it waits for without reading from them, and those that so wait for it; R is waited for by none.
    O(E)."""
    makers = [{problem.maker[v] for v in reads} for reads in problem.reads]
    order = [[p for p in earlier if p not in makers[r]] for r, earlier in enumerate(problem.before)]
    later: list[list[int]] = [[] for _ in range(problem.runs + 1)]
    for r, earlier in enumerate(order):
        for p in earlier:
            later[p].append(r)
    return order, later


def _layers(
    pairs: Sequence[Sequence[tuple[int, int]]], value: int, run: int
) -> list[tuple[Ints, Ints, Ints]]:
    """Rows of (value, reader) as arrays of values, of readers and of row lengths, such that no row of one array has a
    reader twice; padded with `value` and `run`."""
    layers: list[list[list[tuple[int, int]]]] = []
    for row, own in enumerate(pairs):
        seen: dict[int, int] = {}
        for v, r in own:
            depth = seen[r] = seen.get(r, -1) + 1
            if depth == len(layers):
                layers.append([[] for _ in pairs])
            layers[depth][row].append((v, r))
    found = []
    for layer in layers:
        values, lengths = padded([[v for v, _ in row] for row in layer], value)
        found.append((values, padded([[r for _, r in row] for row in layer], run)[0], lengths))
    return found


def padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Ints, Ints]:
    """Rows of different lengths as one array and their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    widest = int(lengths.max()) if len(rows) else 0
    found = np.full((len(rows), max(1, widest)), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        found[index, : len(row)] = row
    return found, lengths
