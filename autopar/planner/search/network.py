"""A problem as the native search has it: the structures of `native/core.h`, of the same fields in the same order."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.costed import repeatable
from ..lists.ranking import cost_to_go
from ..model.problem import Problem

MOST = 24
"""Copies of runs in a list at most."""

Ints, Floats = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)
Hops = list[tuple[int, int, int, float, float]]
"""A way: wire, copy queue, next device, latency in seconds and seconds per byte of each hop."""


class Lists(ctypes.Structure):
    """`Lists` of `native/core.h`."""

    _fields_ = [("at", Ints), ("of", Ints)]


class Arrays(ctypes.Structure):
    """`Network` of `native/core.h`."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("runs", "devices", "wires", "values", "groups", "most_copies")),
        ("lane_at", Ints),
        *((name, Floats) for name in ("seconds", "to_go", "bytes", "latency", "s_per_byte")),
        *((name, Ints) for name in ("hop_at", "hop_wire", "hop_queue", "hop_stop")),
        *((name, Floats) for name in ("hop_latency", "hop_s_per_byte")),
        *(
            (name, Lists)
            for name in (
                "makes", "readers", "deliver", "reads", "sooner", "later", "near", "before", "after", "allowed",
                "members",
            )
        ),
        *((name, Ints) for name in ("waits", "maker", "home", "repeatable")),
    ]  # fmt: skip


class Network:
    """R runs on D devices; `near[r]` are all runs beside run r, and `to_go[r][d]` the seconds from its end on a device
    to the end of the graph, at best. `arrays` is the rest of it, which must not outlive this."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.runs, self.devices = problem, problem.runs, len(problem.devices)
        self.to_go = cost_to_go(problem)
        self.near = [[*dict.fromkeys((*a, *b))] for a, b in zip(problem.before, problem.after)]
        self._held: list[NDArray[Any]] = []
        sooner, later = _unread(problem)
        given = [v for v, maker in enumerate(problem.maker) if maker < 0]
        everywhere = range(self.devices)
        ways = [_hops(problem, s, d) for s in everywhere for d in everywhere]
        hops = [hop for way in ways for hop in way]
        self.arrays = Arrays(
            runs=self.runs,
            devices=self.devices,
            wires=problem.wires + len(problem.copy_lanes),
            values=len(problem.bytes),
            groups=len(problem.members),
            most_copies=MOST,
            lane_at=self._ints([0, *np.cumsum([len(names) for names in problem.lane_names])]),
            seconds=self._floats(problem.seconds),
            to_go=self._floats(self.to_go),
            bytes=self._floats(problem.bytes),
            latency=self._floats(problem.latency),
            s_per_byte=self._floats(problem.s_per_byte),
            hop_at=self._ints([0, *np.cumsum([len(way) for way in ways])]),
            hop_wire=self._ints([hop[0] for hop in hops]),
            hop_queue=self._ints([hop[1] for hop in hops]),
            hop_stop=self._ints([hop[2] for hop in hops]),
            hop_latency=self._floats([hop[3] for hop in hops]),
            hop_s_per_byte=self._floats([hop[4] for hop in hops]),
            makes=self._lists([*problem.makes, given]),
            readers=self._lists(problem.readers),
            deliver=self._lists(problem.deliver),
            reads=self._lists(problem.reads),
            sooner=self._lists(sooner),
            later=self._lists(later),
            near=self._lists(self.near),
            before=self._lists(problem.before),
            after=self._lists(problem.after),
            allowed=self._lists(problem.allowed),
            members=self._lists(problem.members),
            waits=self._ints(len(reads) + len(own) for reads, own in zip(problem.reads, sooner)),
            maker=self._ints(problem.maker),
            home=self._ints(problem.home),
            repeatable=self._ints(repeatable(problem.costed, run) for run in problem.costed.runs),
        )

    def _ints(self, numbers: Iterable[int]) -> Any:
        # One more, for none at all would have no address.
        self._held.append(np.array([*numbers, 0], dtype=np.int32))
        return self._held[-1].ctypes.data_as(Ints)

    def _floats(self, numbers: Sequence[Any]) -> Any:
        self._held.append(np.array(numbers, dtype=np.float64).ravel())
        return self._held[-1].ctypes.data_as(Floats)

    def _lists(self, lists: Iterable[Iterable[int]]) -> Lists:
        own = [list(each) for each in lists]
        at = [0, *np.cumsum([len(each) for each in own], dtype=np.int64)]
        return Lists(self._ints(at), self._ints(number for each in own for number in each))


def _hops(problem: Problem, source: int, target: int) -> Hops:
    none = problem.wires + len(problem.copy_lanes)
    hops = problem.route[source][target]
    if hops is None:
        return [(none, none, target, math.inf, 0.0)]
    found = []
    for hop in hops:
        queue = problem.wires + hop.lane if hop.lane >= 0 else none
        wire, queue = (hop.wire, queue) if hop.wire >= 0 else (queue, none)
        found.append((wire, queue, hop.dst, hop.latency_s, hop.s_per_byte))
    return found


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
