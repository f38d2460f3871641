"""A costed graph as index arrays, which is what planning and simulating work on.

Runs, values and devices are numbers here. Names come back in `simulate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import cast

from ...errors import DeviceError, PlanError
from ...ir.costed import CostedGraph


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a route: from device `src` to `dst` in copy queue `lane` (-1: waits in none), over `wire`
    (-1: shares with nobody). Where machines have no copy queues, `lane` is the wire."""

    src: int
    dst: int
    lane: int
    wire: int
    latency_s: float
    s_per_byte: float

    def seconds(self, nbytes: int) -> float:
        """Seconds `nbytes` take on an idle wire."""
        return self.latency_s + nbytes * self.s_per_byte


class Problem:
    """What there is to place, in numbers.

    Of run r: `seconds[r][d]` (inf: cannot run there; the quickest where `modes[r, d]` has several pairs of lanes
    taken and seconds, the fewest lanes first), `dispatch[r]` seconds of the one host, `reads[r]`
    values that must come to its device, `makes[r]`, `before[r]` runs that must have ended, `after[r]` runs
    that wait for it, `able[r]` devices that can run it (those of its colocate group), `allowed[r]` those of them from
    and to which its values find a way, `group[r]` (-1: none), `kept[r]` (storage, bytes) of resident state. Of value
    v: `bytes[v]`, `maker[v]` (-1: there before the call),
    `home[v]` (device, -1: made), `readers[v]` (runs), `deliver[v]` (devices to which it must come at the
    end), `carry[v]` (runs to whose devices it must come too: it is the new value of carried state that they
    read), `stays[v]` (whether its copies are kept for the next call). `holders` has the runs that read each
    resident state. `given[d]` holds the bytes of each storage that is on device d before the call.
    `route[s][d]` are hops, None without a way, for which `latency[s][d]` is inf. Raises PlanError when a run has
    no device, or none that its values can come from and to.
    """

    def __init__(self, costed: CostedGraph) -> None:
        self.costed = costed
        graph, machine, index = costed.graph, costed.machine, costed.index
        self.devices = tuple(device.name for device in machine.devices)
        self.lane_names = tuple(device.compute_lanes for device in machine.devices)
        self.caps = tuple(device.memory_bytes for device in machine.devices)
        self.names = tuple(run.name for run in costed.runs)
        self.runs = len(costed.runs)
        self.number = {name: r for r, name in enumerate(self.names)}
        self.seconds = [_numbers(run.seconds) for run in costed.runs]
        self.modes: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self.dispatch = [run.dispatch_s for run in costed.runs]
        self.workspace = [run.workspace_bytes for run in costed.runs]

        self.values = [name for run in costed.runs for name in run.makes]
        self.value = {name: v for v, name in enumerate(self.values)}
        self.bytes = [graph.value[name].bytes for name in self.values]
        self.maker = [r for r, run in enumerate(costed.runs) for _ in run.makes]
        self.home = [-1] * len(self.values)
        self.readers: list[list[int]] = [[] for _ in self.values]
        self.deliver: list[list[int]] = [[] for _ in self.values]
        self.carry: list[list[int]] = [[] for _ in self.values]
        self.stays = [name in graph.kept for name in self.values]
        self.holders: dict[str, list[int]] = {}
        self.makes = [tuple(self.value[name] for name in run.makes) for run in costed.runs]
        self.reads: list[tuple[int, ...]] = []
        self.kept: list[tuple[tuple[str, int], ...]] = []
        resident = costed.resident
        for r, run in enumerate(costed.runs):
            reads: list[int] = []
            kept: dict[str, int] = {}
            for name in run.reads:
                if name in resident:
                    storage, nbytes = graph.copies[name]
                    kept[storage] = max(kept.get(storage, 0), nbytes)
                    self.holders.setdefault(name, []).append(r)
                else:
                    reads.append(self.value[name] if name in self.value else self._given(name))
            self.reads.append(tuple(reads))
            self.kept.append(tuple(kept.items()))
            for v in reads:
                self.readers[v].append(r)
        for name, device in costed.deliver:
            v = self._given(name)
            if device and index[device] not in self.deliver[v]:
                self.deliver[v].append(index[device])
        for name, target in graph.updates:
            if target in graph.carried and target in costed.resident:
                self.carry[self.value[name]] += self.holders.get(target, ())

        self.before = [self._before(r) for r in range(self.runs)]
        waiting: list[list[int]] = [[] for _ in self.names]
        for r, earlier in enumerate(self.before):
            for p in earlier:
                waiting[p].append(r)
        self.after = [tuple(later) for later in waiting]
        self.given: list[dict[str, int]] = [{} for _ in self.devices]
        for name in (*graph.inputs, *graph.state):
            home = costed.home.get(name, machine.host)
            if not home:
                continue
            here = self.given[index.get(home, 0)]
            root = graph.value[name].storage
            here[root] = max(here.get(root, 0), graph.value[name].bytes)
        # More than all there is can take on one device: with room for that, no plan can be too large.
        copied = sum(dict(graph.copies.values()).values())
        everything = 2 * sum(value.bytes for value in graph.values) + sum(self.workspace) + copied
        self.tight = any(cap is not None and cap < everything for cap in self.caps)
        self._modes()
        self._group()
        self._routes()

    def _given(self, name: str) -> int:
        """The number of a value that no run makes, if no other has made it one."""
        if name not in self.value:
            costed = self.costed
            self.value[name] = len(self.values)
            self.values.append(name)
            self.bytes.append(costed.graph.value[name].bytes)
            self.maker.append(-1)
            self.home.append(costed.index.get(costed.home.get(name, costed.machine.host), 0))
            self.readers.append([])
            self.deliver.append([])
            self.carry.append([])
            self.stays.append(name in costed.graph.kept)
        return self.value[name]

    def _before(self, r: int) -> tuple[int, ...]:
        found = dict.fromkeys([self.maker[v] for v in self.reads[r] if self.maker[v] >= 0])
        found.update((self.number[name], None) for name in self.costed.runs[r].after)
        found.pop(r, None)
        return tuple(found)

    def _modes(self) -> None:
        for r, run in enumerate(self.costed.runs):
            for d, lanes, seconds in sorted(run.modes):
                if lanes <= len(self.lane_names[d]):
                    self.modes[r, d] = (*self.modes.get((r, d), ()), (lanes, seconds))
            if run.modes:
                # The machine may be another than the one the ways were read for.
                quickest = {d: math.inf for d, _, _ in run.modes}
                quickest |= {d: min(s for _, s in self.modes[r, d]) for d in quickest if (r, d) in self.modes}
                self.seconds[r] = tuple(quickest.get(d, s) for d, s in enumerate(self.seconds[r]))

    def _group(self) -> None:
        groups: dict[str, int] = {}
        self.members: list[list[int]] = []
        self.group = []
        for r, run in enumerate(self.costed.runs):
            if run.colocate is None:
                self.group.append(-1)
                continue
            if run.colocate not in groups:
                groups[run.colocate] = len(self.members)
                self.members.append([])
            self.group.append(groups[run.colocate])
            self.members[groups[run.colocate]].append(r)
        everywhere = tuple(range(len(self.devices)))
        self.able = self.allowed = [
            tuple(d for d in everywhere if row[d] < math.inf) if math.inf in row else everywhere
            for row in self.seconds
        ]
        for r in range(self.runs):
            if not self.allowed[r]:
                where = self.costed.graph.task[self.costed.runs[r].tasks[0]].where
                raise PlanError(
                    f"run {self.names[r]!r} can run on no device of {', '.join(self.devices)}: {where}; "
                    "take a pin back or add a device that can run it"
                )
        for name, g in groups.items():
            shared, narrowest = tuple(everywhere), self.members[g][0]
            for r in self.members[g]:
                left = tuple(d for d in shared if d in self.allowed[r])
                if not left:
                    where = " or ".join(self.devices[d] for d in shared)
                    raise PlanError(
                        f"{self.names[narrowest]!r} and {self.names[r]!r} must share a device (group {name!r}) "
                        f"but are pinned to {where} and {self.where(r)}; pin both to one device"
                    )
                shared, narrowest = left, narrowest if left == shared else r
            for r in self.members[g]:
                self.allowed[r] = shared

    def where(self, run: int) -> str:
        """The devices a run may go to, for messages."""
        return " or ".join(self.devices[d] for d in self.allowed[run])

    def _routes(self) -> None:
        machine, index = self.costed.machine, self.costed.index
        # Programs of models are lowered knowing the machine alone, so that their values all go one way.
        usual = {} if machine.queued or not self.bytes else {"nbytes": sum(self.bytes) // len(self.bytes)}
        self.copy_lanes: list[str] = []
        wires: dict[str, int] = {}
        lanes: dict[str, int] = {}
        self.route: list[list[tuple[Hop, ...] | None]] = []
        for src in self.devices:
            row: list[tuple[Hop, ...] | None] = []
            for dst in self.devices:
                try:
                    links = machine.route(src, dst, **usual)
                except DeviceError:
                    row.append(None)
                    continue
                hops = []
                for link in links:
                    queue = machine.queue(link)
                    if queue is not None and queue not in lanes:
                        lanes[queue] = len(lanes)
                        self.copy_lanes.append(queue)
                    lane = -1 if queue is None else lanes[queue]
                    shared = link.wire if machine.queued else None
                    wire = -1 if shared is None else wires.setdefault(shared, len(wires))
                    ends = index[link.src], index[link.dst]
                    hops.append(Hop(*ends, lane, wire, link.latency_s, 1 / link.bytes_per_s))
                row.append(tuple(hops))
            self.route.append(row)
        if not machine.queued and any(None in row for row in self.route):
            self.allowed = _narrow(self)
        self.wires = len(wires)
        self.latency = [[self._sum(hops, 0) for hops in row] for row in self.route]
        self.s_per_byte = [[self._sum(hops, 1) for hops in row] for row in self.route]

    @staticmethod
    def _sum(hops: tuple[Hop, ...] | None, part: int) -> float:
        # Without a way the latency alone is infinite: no bytes at an infinite time each would be no number.
        if hops is None:
            return 0.0 if part else math.inf
        return sum((hop.latency_s, hop.s_per_byte)[part] for hop in hops)

    def travel(self, value: int, src: int, dst: int) -> float:
        """Seconds a value needs from `src` to `dst` on idle wires, inf without a way."""
        if src == dst:
            return 0.0
        return self.latency[src][dst] + self.bytes[value] * self.s_per_byte[src][dst]


def _numbers(seconds: tuple[float | None, ...]) -> tuple[float, ...]:
    if None in seconds:
        return tuple(math.inf if s is None else s for s in seconds)
    return cast("tuple[float, ...]", seconds)


def _narrow(problem: Problem) -> list[tuple[int, ...]]:
    """Of the devices that each run may go to, those that may be part of a placement of every run once.

    Arc consistency (Mackworth, "Consistency in networks of relations", Artificial Intelligence 8(1), 1977): what a run
    makes must come from each of its devices to some device of each reader, and to each device of a reader from some
    of the maker's. A run computed again may be on others. PlanError where nothing is left. O(E) for E reads, a few
    times over.
    """
    every = range(len(problem.devices))
    leads = [sum(1 << d for d in every if row[d] is not None) for row in problem.route]
    leader = [problem.members[g][0] if g >= 0 else r for r, g in enumerate(problem.group)]
    left = [sum(1 << d for d in allowed) for allowed in problem.allowed]

    @cache
    def reached(devices: int) -> int:
        found = 0
        for d in every:
            if devices >> d & 1:
                found |= leads[d]
        return found

    @cache
    def reaching(devices: int) -> int:
        return sum(1 << d for d in every if leads[d] & devices)

    def keep(v: int, r: int, devices: int) -> bool:
        """Leave run r of the ends of value v on none but these devices; whether it lost any."""
        own = leader[r]
        if not left[own] & ~devices:
            return False
        if not left[own] & devices:
            raise PlanError(
                f"no placement brings {problem.values[v]!r} to all that read it: over the links that there are, it "
                f"comes from or to {problem.names[r]!r} on none of {problem.where(r)}; add a link"
            )
        left[own] &= devices
        return True

    found = True
    values = range(len(problem.values))
    while found:
        found = False
        for v in values:
            m = problem.maker[v]
            for r in problem.readers[v]:
                sources = 1 << problem.home[v] if m < 0 else left[leader[m]]
                found |= keep(v, r, reached(sources))
        for v in reversed(values):
            m = problem.maker[v]
            for target in (
                *(left[leader[r]] for r in problem.readers[v]),
                *(1 << d for d in problem.deliver[v]),
            ):
                found |= m >= 0 and keep(v, m, reaching(target))
    known: dict[int, tuple[int, ...]] = {}
    for devices in left:
        known.setdefault(devices, tuple(d for d in every if devices >> d & 1))
    return [known[left[own]] for own in leader]
