"""How busy every device and wire is in one period: what a placement of groups is judged by."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..contiguous import Floats
from .lanes import Part, busiest

FEW = 64
"""Parts of all groups up to which they are shared out to lanes at each move; the lanes of a device with many are about
as busy as each other in any case."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a route, by number, and the seconds it takes of some resources: `latency_s` + bytes × `s_per_byte`
    of each."""

    number: int
    resources: tuple[int, ...]
    latency_s: float
    s_per_byte: float


@dataclass(frozen=True, slots=True)
class Value:
    """`nbytes` made by group `maker`, or at hand on device `home` (maker -1), read by groups and brought to devices
    in any case. A group is named once for each of its readers."""

    nbytes: float
    maker: int
    home: int
    readers: tuple[int, ...]
    deliver: tuple[int, ...] = ()


class Loads:
    """What there is to balance: groups of tasks, each of which goes to one device, and the values between them.

    `seconds[g][d]` are those of one lane of device d (inf: cannot run there); a device is resource d with `lanes[d]`
    lanes, and `resources` counts them with the wires that follow. `held[g][d]` bytes that a group needs there, of
    `caps[d]` (inf: enough). `routes[s][d]` are hops, None without a way. `fixed[r]` seconds of resource r are taken
    in any case. `parts[g][d]` are the tasks of group g as (seconds, lanes), which stay whole on lanes of device d;
    `seconds` counts each once for each of its lanes. `touches[g]` are the values that group g makes or reads, and how
    often it reads them.
    """

    def __init__(
        self,
        seconds: Sequence[Sequence[float]],
        lanes: Sequence[int],
        values: Sequence[Value],
        routes: Sequence[Sequence[tuple[Hop, ...] | None]],
        resources: int,
        held: Sequence[Sequence[float]],
        caps: Sequence[float],
        position: Sequence[float],
        fixed: Sequence[float] | None = None,
        parts: Sequence[Sequence[Sequence[Part]]] | None = None,
    ) -> None:
        self.seconds = [tuple(row) for row in seconds]
        self.groups, self.devices = len(self.seconds), len(lanes)
        self.lanes = tuple(lanes)
        self.values = tuple(values)
        self.routes = routes
        self.resources = resources
        self.held = held
        self.caps = tuple(caps)
        self.fixed = list(fixed or [0.0] * resources)
        self.width = [*lanes, *[1] * (resources - len(lanes))]
        self.parts = parts or [[[(s, 1)] for s in row] for row in self.seconds]
        few = sum(len(row[0]) for row in self.parts) <= FEW
        self.whole = tuple(few and count > 1 for count in self.lanes)
        # Groups are told apart by where they stand in the graph, the first of equals first.
        self.order = sorted(range(self.groups), key=lambda g: (position[g], g))
        self.allowed = [tuple(d for d, s in enumerate(row) if s < math.inf) for row in self.seconds]
        self.touches: list[list[tuple[int, int]]] = [[] for _ in range(self.groups)]
        for v, value in enumerate(self.values):
            times = Counter(value.readers)
            for g in dict.fromkeys((*((value.maker,) if value.maker >= 0 else ()), *value.readers)):
                self.touches[g].append((v, times[g]))
        self._ways: dict[tuple[int, int], tuple[Hop, ...] | None] = {}

    def within(self, room: float) -> Loads:
        """The same with `room` of the caps, from 0 to 1."""
        found = copy(self)
        found.caps = tuple(room * cap for cap in self.caps)
        return found

    def ways(self, source: int, targets: int) -> tuple[Hop, ...] | None:
        """The hops that bring a value from a device to a set of devices (as bits), each once; None without a way."""
        key = source, targets
        if key not in self._ways:
            routes = [self.routes[source][d] for d in range(self.devices) if targets >> d & 1]
            found = {hop.number: hop for hops in routes for hop in hops or ()}
            self._ways[key] = None if None in routes else tuple(found.values())
        return self._ways[key]

    @cached_property
    def area(self) -> Floats:
        """Seconds of each group on each device over its lanes."""
        made: Floats = np.array(self.seconds).reshape(self.groups, self.devices) / np.array(self.lanes)
        return made


class Standing:
    """A placement and its loads, kept up as groups move. `load[r]` is in seconds of the period: of the busiest lane of
    a device where parts stay whole, else of all its lanes evenly. `lost` counts values that have no way to a reader,
    `over` the bytes above caps."""

    def __init__(self, loads: Loads, at: Sequence[int]) -> None:
        self.loads = loads
        self.at = list(at)
        self.load = [busy / width for busy, width in zip(loads.fixed, loads.width)]
        self.used = [0.0] * loads.devices
        self.parts: list[list[tuple[float, int]]] = [[] for _ in loads.lanes]
        self.lost = 0
        self.readers = [[0] * loads.devices for _ in loads.values]
        for g, d in enumerate(self.at):
            self._settle(g, d, 1)
        for v, value in enumerate(loads.values):
            for d in value.deliver:
                self.readers[v][d] += 1
            for g in value.readers:
                self.readers[v][self.at[g]] += 1
            self._charge(v, 1)

    @property
    def over(self) -> float:
        """Bytes above the caps, all devices together."""
        return sum(max(0.0, used - cap) for used, cap in zip(self.used, self.loads.caps))

    @property
    def period(self) -> float:
        """The largest load, in seconds; infinite where a value has no way."""
        return math.inf if self.lost else max(self.load, default=0.0)

    def move(self, group: int, device: int) -> None:
        """Put a group on another device."""
        before = self.at[group]
        touched = self.loads.touches[group]
        for v, _ in touched:
            self._charge(v, -1)
        self._settle(group, before, -1)
        self._settle(group, device, 1)
        self.at[group] = device
        for v, times in touched:
            self.readers[v][before] -= times
            self.readers[v][device] += times
            self._charge(v, 1)

    def _settle(self, group: int, device: int, sign: int) -> None:
        loads = self.loads
        self.used[device] += sign * loads.held[group][device]
        if not loads.whole[device]:
            self.load[device] += sign * loads.seconds[group][device] / loads.lanes[device]
            return
        own, lanes = self.parts[device], loads.lanes[device]
        for seconds, wide in loads.parts[group][device]:
            part = -seconds, -wide
            if sign > 0:
                insort(own, part)
            else:
                own.pop(bisect_left(own, part))
        self.load[device] = loads.fixed[device] / lanes + busiest(own, lanes)

    def _charge(self, v: int, sign: int) -> None:
        value = self.loads.values[v]
        source = value.home if value.maker < 0 else self.at[value.maker]
        targets = 0
        for d, count in enumerate(self.readers[v]):
            if count and d != source:
                targets |= 1 << d
        if not targets:
            return
        hops = self.loads.ways(source, targets)
        if hops is None:
            self.lost += sign
            return
        for hop in hops:
            seconds = sign * (hop.latency_s + value.nbytes * hop.s_per_byte)
            for resource in hop.resources:
                self.load[resource] += seconds / self.loads.width[resource]
