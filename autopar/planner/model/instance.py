"""The instance: a costed graph as index arrays, on which planning and simulation work.

Clusters, values and devices are numbers here; a plan (`timing`) has names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from operator import or_

from ...errors import DeviceError, PlanError
from ...ir.costed import CostedGraph
from .toposort import inverse


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a route: from device `src` to `dst` in copy queue `lane` (-1: none), over bus `wire` (-1:
    none). On machines without copy queues, `lane` is the bus."""

    src: int
    dst: int
    lane: int
    wire: int
    latency_s: float
    s_per_byte: float

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of `nbytes` on an idle bus."""
        return self.latency_s + nbytes * self.s_per_byte


class Instance:
    """A scheduling problem as index arrays, for R clusters, V values, D devices and G colocate groups.

    The arrays are lists and tuples, which Python's loops read faster; `search` has the C arrays. Raises
    PlanError if a cluster can run on no device, or on none with routes for its values.

    Of cluster r:
        seconds[r][d]: float, inf if it cannot run
        dispatch[r]: float, seconds of the one host
        workspace[r]: int, bytes while it runs
        reads[r], makes[r]: its inputs and outputs
        before[r], after[r]: its predecessors and successors
        sooner[r]: predecessors whose values it does not read
        allowed[r]: devices that can run it and the rest of its colocate group, with routes for its values
        group[r]: int, -1 for none; members[g] are the clusters of group g
        resident[r]: (storage, bytes) of resident state

    Of value v:
        bytes[v]: int
        maker[v]: cluster, -1 if it exists before the call
        home[v]: its device before the call, -1 if it is made
        readers[v]: clusters
        deliver[v]: devices to which it must come at the end
        carry[v]: clusters that read the carried state it updates, to whose devices it must also come
        stays[v]: bool, whether its copies are kept for the next call
        views[name]: name of the value that it is a view of

    Of devices s and d:
        lane_names[d], widths[d]: its compute lanes, and their number
        caps[d]: int, bytes, or None
        initial[d]: bytes of each storage that exists before the call
        route[s][d]: hops, None without a route
        latency[s][d], s_per_byte[s][d]: float, of the whole route, inf and 0 without one

    Of all: `holders[name]` are the clusters that read a resident state; `tight` tells whether a cap could be
    too small.
    """

    def __init__(self, costed: CostedGraph) -> None:
        self.costed = costed
        graph, machine, index, resident = costed.graph, costed.machine, costed.index, costed.graph.resident
        self.devices = tuple(device.name for device in machine.devices)
        self.lane_names = tuple(device.compute_lanes for device in machine.devices)
        self.widths = [*map(len, self.lane_names)]
        self.caps = tuple(device.memory_bytes for device in machine.devices)
        self.names = tuple(cluster.name for cluster in costed.clusters)
        self.clusters = len(costed.clusters)
        self.number = {name: r for r, name in enumerate(self.names)}
        self.seconds = [
            tuple(math.inf if s is None else s for s in cluster.seconds) for cluster in costed.clusters
        ]
        self.dispatch = [cluster.dispatch_s for cluster in costed.clusters]
        self.workspace = [cluster.workspace_bytes for cluster in costed.clusters]

        # Values that clusters make come first.
        outputs = (name for cluster in costed.clusters for name in cluster.makes)
        inputs = (name for cluster in costed.clusters for name in cluster.reads if name not in resident)
        self.values = [*dict.fromkeys((*outputs, *inputs, *(name for name, _ in costed.deliver)))]
        self.value = {name: v for v, name in enumerate(self.values)}
        self.bytes = [graph.value[name].bytes for name in self.values]
        self.makes = [tuple(self.value[name] for name in cluster.makes) for cluster in costed.clusters]
        self.maker = [-1] * len(self.values)
        self.home = [index.get(costed.home.get(name, machine.host), 0) for name in self.values]
        for r, makes in enumerate(self.makes):
            for v in makes:
                self.maker[v], self.home[v] = r, -1
        self.readers: list[list[int]] = [[] for _ in self.values]
        self.deliver: list[list[int]] = [[] for _ in self.values]
        self.carry: list[list[int]] = [[] for _ in self.values]
        self.stays = [name in graph.refreshed for name in self.values]
        self.holders: dict[str, list[int]] = {}
        self.reads: list[tuple[int, ...]] = []
        self.resident: list[tuple[tuple[str, int], ...]] = []
        for r, cluster in enumerate(costed.clusters):
            self.reads.append(tuple(self.value[name] for name in cluster.reads if name not in resident))
            for v in self.reads[r]:
                self.readers[v].append(r)
            storages: dict[str, int] = {}
            for name in cluster.reads:
                if name in resident:
                    storage, nbytes = graph.copies[name]
                    storages[storage] = max(storages.get(storage, 0), nbytes)
                    self.holders.setdefault(name, []).append(r)
            self.resident.append(tuple(storages.items()))
        for name, device in costed.deliver:
            wanted = self.deliver[self.value[name]]
            if device and index[device] not in wanted:
                wanted.append(index[device])
        for name, target in graph.updates:
            if target in graph.carried and target in resident:
                self.carry[self.value[name]] += self.holders.get(target, ())

        self.before: list[tuple[int, ...]] = []
        self.sooner: list[tuple[int, ...]] = []
        for r, cluster in enumerate(costed.clusters):
            makers = dict.fromkeys(self.maker[v] for v in self.reads[r] if self.maker[v] >= 0)
            others = dict.fromkeys(self.number[name] for name in cluster.after)
            self.sooner.append(tuple(p for p in others if p != r and p not in makers))
            self.before.append((*(p for p in makers if p != r), *self.sooner[r]))
        self.after = [tuple(later) for later in inverse(self.before)]
        self._memory()
        self._group()
        self._routes()

    def _memory(self) -> None:
        costed, graph = self.costed, self.costed.graph
        self.views: dict[str, str] = {}
        for value in graph.values:
            if value.storage != value.name and value.name in graph.producer:
                inputs = graph.task[graph.producer[value.name]].inputs
                up = next((read for read in inputs if graph.value[read].storage == value.storage), None)
                if up is not None:
                    self.views[value.name] = up
        self.initial: list[dict[str, int]] = [{} for _ in self.devices]
        for name in (*graph.inputs, *graph.state):
            if home := costed.home.get(name, costed.machine.host):
                here, value = self.initial[costed.index.get(home, 0)], graph.value[name]
                here[value.storage] = max(here.get(value.storage, 0), value.bytes)
                if value.slice:
                    # Other devices hold a replica of the slice; at home it is part of its parameter.
                    here[name] = 0
        # No plan holds more than this on one device, so a larger cap never binds.
        copied = sum(dict(graph.copies.values()).values())
        everything = 2 * sum(value.bytes for value in graph.values) + sum(self.workspace) + copied
        self.tight = any(cap is not None and cap < everything for cap in self.caps)

    def _group(self) -> None:
        groups: dict[str, list[int]] = {}
        for r, cluster in enumerate(self.costed.clusters):
            if cluster.colocate is not None:
                groups.setdefault(cluster.colocate, []).append(r)
        self.members = [*groups.values()]
        self.group = [-1] * self.clusters
        for g, members in enumerate(self.members):
            for r in members:
                self.group[r] = g
        everywhere = tuple(range(len(self.devices)))
        self.allowed = [
            tuple(d for d in everywhere if row[d] < math.inf) if math.inf in row else everywhere
            for row in self.seconds
        ]
        for r in range(self.clusters):
            if not self.allowed[r]:
                where = self.costed.graph.task[self.costed.clusters[r].tasks[0]].where
                raise PlanError(
                    f"cluster {self.names[r]!r} can run on no device of {', '.join(self.devices)}: {where}; "
                    "remove a pin or add a device that can run it"
                )
        for name, members in groups.items():
            shared, narrowest = everywhere, members[0]
            for r in members:
                left = tuple(d for d in shared if d in self.allowed[r])
                if not left:
                    where = " or ".join(self.devices[d] for d in shared)
                    raise PlanError(
                        f"{self.names[narrowest]!r} and {self.names[r]!r} must share a device (group {name!r}) "
                        f"but can only run on {where} and {self.where(r)}; pin both to one device, or part the group"
                    )
                shared, narrowest = left, narrowest if left == shared else r
            for r in members:
                self.allowed[r] = shared

    @cached_property
    def hops(self) -> dict[tuple[int, int], Hop]:
        """Return all links that routes use, by their ends. Each link is itself a route."""
        return {(hop.src, hop.dst): hop for row in self.route for hops in row for hop in hops or ()}

    @property
    def room(self) -> list[float]:
        """Return the bytes that each device has for values made in the call, and for inputs if these are consumed;
        inf without a cap."""
        held = [0 if self.costed.consumed else sum(storages.values()) for storages in self.initial]
        return [math.inf if cap is None else cap - used for cap, used in zip(self.caps, held)]

    def together(self, cluster: int) -> Sequence[int]:
        """Return the colocate group of a cluster, or the cluster alone."""
        return self.members[self.group[cluster]] if self.group[cluster] >= 0 else (cluster,)

    def where(self, cluster: int) -> str:
        """Return the allowed devices of a cluster as text for messages."""
        return " or ".join(self.devices[d] for d in self.allowed[cluster])

    def _routes(self) -> None:
        machine, index = self.costed.machine, self.costed.index
        # Lowering a model's program knows the machine but no sizes, so all values take the same route.
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
        # Without a route only the latency is infinite: 0 bytes times infinity would be NaN.
        self.latency = [
            [math.inf if hops is None else sum(hop.latency_s for hop in hops) for hops in row]
            for row in self.route
        ]
        self.s_per_byte = [[sum(hop.s_per_byte for hop in hops or ()) for hops in row] for row in self.route]

    def travel(self, value: int, src: int, dst: int) -> float:
        """Return the seconds of a value from `src` to `dst` on idle buses; inf without a route."""
        if src == dst:
            return 0.0
        return self.latency[src][dst] + self.bytes[value] * self.s_per_byte[src][dst]


def _narrow(instance: Instance) -> list[tuple[int, ...]]:
    """Return the allowed devices of each cluster that can be part of a placement of all clusters.

    Arc consistency (Mackworth, "Consistency in networks of relations", Artificial Intelligence 8(1), 1977): a
    value needs a route from each device of its maker to some device of each reader, and vice versa.
    Raises PlanError if nothing is left. O(E) for E reads, a few times over.
    """
    every = range(len(instance.devices))
    leads = [sum(1 << d for d in every if row[d] is not None) for row in instance.route]
    leader = [instance.members[g][0] if g >= 0 else r for r, g in enumerate(instance.group)]
    left = [sum(1 << d for d in allowed) for allowed in instance.allowed]

    @cache
    def reached(devices: int) -> int:
        return reduce(or_, (leads[d] for d in every if devices >> d & 1), 0)

    @cache
    def reaching(devices: int) -> int:
        return sum(1 << d for d in every if leads[d] & devices)

    def keep(v: int, r: int, devices: int) -> bool:
        """Restrict cluster r, maker or reader of v, to these devices; return True if that removes any."""
        first = leader[r]
        if not left[first] & ~devices:
            return False
        if not left[first] & devices:
            raise PlanError(
                f"no link, nor two in a row, brings {instance.values[v]!r} to or from {instance.names[r]!r} on "
                f"{instance.where(r)}, wherever else it is made or read; add a link"
            )
        left[first] &= devices
        return True

    values = range(len(instance.values))
    for v, home in enumerate(instance.home):
        for d in instance.deliver[v] if home >= 0 else ():
            if not leads[home] >> d & 1:
                raise PlanError(
                    f"no link, nor two in a row, brings {instance.values[v]!r} from {instance.devices[home]} to "
                    f"{instance.devices[d]} for its delivery; add a link"
                )
    changed = True
    while changed:
        changed = False
        for v in values:
            m = instance.maker[v]
            for r in instance.readers[v]:
                sources = 1 << instance.home[v] if m < 0 else left[leader[m]]
                changed |= keep(v, r, reached(sources))
        for v in reversed(values):
            m = instance.maker[v]
            for target in (
                *(left[leader[r]] for r in instance.readers[v]),
                *(1 << d for d in instance.deliver[v]),
            ):
                changed |= m >= 0 and keep(v, m, reaching(target))
    known: dict[int, tuple[int, ...]] = {}
    for devices in left:
        known.setdefault(devices, tuple(d for d in every if devices >> d & 1))
    return [known[left[r]] for r in leader]
