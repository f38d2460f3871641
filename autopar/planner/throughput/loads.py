"""Loads of devices and buses in one period, for a placement of groups."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..bounds.critical_path import Floats
from ..model.instance import Hop, Instance
from ..model.toposort import late

Part = tuple[float, int]
"""Seconds, and the number of lanes used for that long."""

FEW = 64
"""Limit on the parts of all groups for which each move assigns them to lanes; with more, lanes are about equally
busy."""


@dataclass(frozen=True, slots=True)
class Net:
    """A value of `nbytes` made by group `maker`, or given on device `home` (maker -1), with its reading
    groups, each as often as it has readers, and the devices that it must reach."""

    nbytes: float
    maker: int
    home: int
    readers: tuple[int, ...]
    deliver: tuple[int, ...] = ()


@dataclass
class Loads:
    """A load balancing problem: groups of tasks, each to be placed on one device, and the values between them.

    seconds[g][d]: lane seconds of group g on device d; inf: cannot run there.
    lanes[d]: lanes of device d, which is resource d.
    routes[s][d]: hops, whose `lane` and `wire` are resources here; None without a route.
    resources: number of devices, buses and queues.
    held[g][d]: bytes that group g needs there.
    caps[d]: bytes; inf: enough.
    position[g]: place in the graph, by which groups are sorted; ties by number.
    fixed[r]: seconds of resource r in any case; by default 0.
    parts[g][d]: (seconds, lanes) of the indivisible tasks of group g on device d; `seconds` counts a task
    once for each of its lanes. By default, a group is one task.
    members[g]: clusters of group g, if the loads are those of an instance.
    touches[g]: values that group g makes or reads, and how often it reads them.
    """

    seconds: Sequence[Sequence[float]]
    lanes: Sequence[int]
    values: Sequence[Net]
    routes: Sequence[Sequence[tuple[Hop, ...] | None]]
    resources: int
    held: Sequence[Sequence[float]]
    caps: Sequence[float]
    position: Sequence[float]
    fixed: Sequence[float] = ()
    parts: Sequence[Sequence[Sequence[Part]]] = ()
    members: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        self.groups, self.devices = len(self.seconds), len(self.lanes)
        self.fixed = self.fixed or [0.0] * self.resources
        self.width = [*self.lanes, *[1] * (self.resources - self.devices)]
        self.parts = self.parts or [[[(s, 1)] for s in row] for row in self.seconds]
        few = sum(len(row[0]) for row in self.parts) <= FEW
        self.whole = tuple(few and count > 1 for count in self.lanes)
        self.order = sorted(range(self.groups), key=lambda g: (self.position[g], g))
        self.allowed = [tuple(d for d, s in enumerate(row) if s < math.inf) for row in self.seconds]
        self.touches: list[list[tuple[int, int]]] = [[] for _ in range(self.groups)]
        for v, value in enumerate(self.values):
            times = Counter(value.readers)
            for g in dict.fromkeys((*((value.maker,) if value.maker >= 0 else ()), *value.readers)):
                self.touches[g].append((v, times[g]))
        self._uses: dict[tuple[int, int], tuple[tuple[int, float, float], ...] | None] = {}

    def within(self, room: float) -> Loads:
        """Return the loads with `room` of the caps, from 0 to 1."""
        found = copy(self)
        found.caps = tuple(room * cap for cap in self.caps)
        return found

    def uses(self, source: int, targets: int) -> tuple[tuple[int, float, float], ...] | None:
        """Return each resource that a value occupies on its way from a device to a set of devices (a bit mask), with
        its seconds there: latency, and seconds per byte; None without a route. Each hop counts once."""
        key = source, targets
        if key not in self._uses:
            routes = [self.routes[source][d] for d in range(self.devices) if targets >> d & 1]
            hops = dict.fromkeys(hop for hops in routes for hop in hops or ())
            self._uses[key] = (
                None
                if None in routes
                else tuple(
                    (resource, hop.latency_s, hop.s_per_byte)
                    for hop in hops
                    for resource in (hop.lane, hop.wire)
                    if resource >= 0
                )
            )
        return self._uses[key]

    @cached_property
    def area(self) -> Floats:
        """Seconds of each group on each device divided by its lanes."""
        made: Floats = np.array(self.seconds).reshape(self.groups, self.devices) / np.array(self.lanes)
        return made


class Standing:
    """A placement and its loads, updated as groups move.

    load[r]: seconds of the period: of the busiest lane if parts are indivisible, else the mean over lanes.
    lost: number of values without a route to a reader.
    over: bytes above caps.
    """

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
        """Bytes above the caps, summed over the devices."""
        return sum(max(0.0, used - cap) for used, cap in zip(self.used, self.loads.caps))

    @property
    def period(self) -> float:
        """The maximum load in seconds; inf if a value has no route."""
        return math.inf if self.lost else max(self.load, default=0.0)

    def move(self, group: int, device: int) -> None:
        """Move a group to another device."""
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
        uses = self.loads.uses(source, targets)
        if uses is None:
            self.lost += sign
            return
        for resource, latency_s, s_per_byte in uses:
            seconds = sign * (latency_s + value.nbytes * s_per_byte)
            self.load[resource] += seconds / self.loads.width[resource]


def share(parts: Sequence[Part], lanes: int) -> list[tuple[int, ...]]:
    """Assign parts to lanes by longest processing time first, each to the least busy lanes (Graham, "Bounds on
    multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969)."""
    found: list[tuple[int, ...]] = [()] * len(parts)
    busy = [(0.0, lane) for lane in range(lanes)]
    for index in sorted(range(len(parts)), key=lambda index: (-parts[index][0], -parts[index][1], index)):
        seconds, wide = parts[index]
        taken = [heapq.heappop(busy) for _ in range(wide)]
        for so_far, lane in taken:
            heapq.heappush(busy, (so_far + seconds, lane))
        found[index] = tuple(sorted(lane for _, lane in taken))
    return found


def busiest(parts: Sequence[tuple[float, int]], lanes: int) -> float:
    """Return the seconds of the busiest lane for parts (-seconds, -lanes), sorted, assigned as by `share`."""
    busy = [0.0] * lanes
    for less, fewer in parts:
        if fewer == -1:
            heapq.heapreplace(busy, busy[0] - less)
        else:
            taken = [heapq.heappop(busy) for _ in range(-fewer)]
            for so_far in taken:
                heapq.heappush(busy, so_far - less)
    return max(busy)


def loads_of(instance: Instance) -> Loads:
    """Return the problem as loads of its colocate groups and of its other clusters."""
    devices = range(len(instance.devices))
    together = map(instance.together, range(instance.clusters))
    groups = [[*members] for r, members in enumerate(together) if members[0] == r]
    of = {r: g for g, members in enumerate(groups) for r in members}
    seconds, held, parts = [], [], []
    for members in groups:
        row = [0.0] * len(devices)
        tasks: list[list[Part]] = [[] for _ in devices]
        for r in members:
            for d in devices:
                lanes, took = instance.modes.get((r, d), ((1, instance.seconds[r][d]),))[0]
                row[d] += lanes * took
                tasks[d].append((took, lanes))
        seconds.append(row)
        parts.append(tasks)
        kept = {storage: nbytes for r in members for storage, nbytes in instance.kept[r]}
        made = sum(instance.bytes[v] for r in members for v in instance.makes[r])
        held.append([
            made + sum(nbytes for storage, nbytes in kept.items() if storage not in given)
            for given in instance.given
        ])  # fmt: skip
    scratch = max(instance.workspace, default=0)
    caps = [
        math.inf if cap is None else cap - sum(given.values()) - scratch
        for cap, given in zip(instance.caps, instance.given)
    ]
    values = []
    for v, readers in enumerate(instance.readers):
        group, reads = of.get(instance.maker[v], -1), tuple(of[r] for r in readers)
        apart = instance.deliver[v] or any(g != group for g in reads)
        if apart and instance.values[v] not in instance.holders:
            values.append(Net(instance.bytes[v], group, instance.home[v], reads, tuple(instance.deliver[v])))
    queues = len(devices) + instance.wires
    last = queues + len(instance.copy_lanes)

    def used(hop: Hop) -> Hop:
        lane = queues + hop.lane if hop.lane >= 0 else -1
        wire = len(devices) + hop.wire if hop.wire >= 0 else -1
        return replace(hop, lane=lane, wire=wire)

    routes = [[None if hops is None else tuple(map(used, hops)) for hops in row] for row in instance.route]
    fixed = [0.0] * last + [sum(instance.dispatch)]
    rank = {r: place for place, r in enumerate(late(instance.before))}
    position = [float(min(rank[r] for r in members)) for members in groups]
    return Loads(
        seconds, instance.widths, values, routes, last + 1, held, caps, position, fixed, parts, groups
    )
