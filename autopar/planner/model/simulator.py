"""Event-driven simulation of a `Schedule`: start and end of every step, given placement and lane orders.

Lanes run their clusters in order, and every step starts as early as possible. A transfer acquires a copy
queue without a fixed order, then a bus, and holds both until it ends. A cluster holds the one host (the GIL)
for its dispatch time. These resources are FIFO; of simultaneous requests, the step with the lower number comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from ...errors import PlanError
from ...ir.plan import Plan
from ...ir.timeline import Placed
from .instance import Hop, Instance

Move = tuple[str, str, str]
"""A value, its source device and its target device: one entry of a copy queue."""


@dataclass(frozen=True)
class Schedule:
    """A schedule without times: the order of clusters on each lane, and perhaps of transfers on copy queues.

    Transfers follow from the placement. A copy queue that `copies` does not list serves transfers as they become
    ready, as do all buses of machines without copy queues. `ahead`: most clusters of a lane between the start of a
    transfer of streamed state and its first reader; None: any number.
    """

    policy: str
    lanes: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, tuple[Move, ...]] = field(default_factory=dict)
    ahead: int | None = None


def in_order(
    instance: Instance,
    policy: str,
    clusters: Iterable[tuple[int, int, int]],
    moves: Iterable[tuple[int, Hop]] | None = None,
) -> Schedule:
    """Return a schedule of (cluster, device, lane) and (value, hop) in these orders; without `moves`,
    transfers have no fixed order. Hops without a copy queue are left out."""
    lanes: dict[str, list[str]] = {lane: [] for names in instance.lane_names for lane in names}
    for r, d, lane in clusters:
        lanes[instance.lane_names[d][lane]].append(instance.names[r])
    copies: dict[str, list[Move]] = {} if moves is None else {name: [] for name in instance.copy_lanes}
    for v, hop in moves or ():
        if hop.lane >= 0:
            ends = instance.devices[hop.src], instance.devices[hop.dst]
            copies[instance.copy_lanes[hop.lane]].append((instance.values[v], *ends))
    return Schedule(
        policy,
        {lane: tuple(names) for lane, names in lanes.items()},
        {lane: tuple(moved) for lane, moved in copies.items()},
    )


def schedule_of(plan: Plan) -> Schedule:
    """Return the orders of a plan's lanes, copy queues and buses; omit transfers without a link."""
    machine = plan.costed.machine
    lanes: dict[str, list[str]] = {}
    copies: dict[str, list[Move]] = {}
    for step in plan.steps:
        if isinstance(step, Placed):
            lanes.setdefault(step.lane, []).append(step.cluster)
            continue
        link = machine.link.get((step.src, step.dst))
        queue = machine.queue(link) if link else None
        if queue is not None:
            copies.setdefault(queue, []).append((step.value, step.src, step.dst))
    return Schedule(
        plan.policy,
        {lane: tuple(names) for lane, names in lanes.items()},
        {queue: tuple(moves) for queue, moves in copies.items()},
    )


class Simulation:
    """A simulated schedule. Steps are numbered: clusters first, then `moves`, the (value, hop) pairs.

    start, end, ready: seconds of each step.
    turn: numbers that increase along every queue and from each step to those that wait for it.
    device, lane: the device and lane of each cluster.
    makespan: seconds until all clusters have ended and all values are delivered.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance, self.schedule = instance, schedule
        self.device = [-1] * instance.clusters
        self.lane = [""] * instance.clusters
        self.orders: list[list[int]] = []
        for device, lanes in enumerate(instance.lane_names):
            for lane in lanes:
                order = []
                for name in schedule.lanes.get(lane, ()):
                    r = instance.number.get(name, -1)
                    if r < 0 or self.device[r] >= 0 or device not in instance.allowed[r]:
                        raise self._misplaced(r, name, device, lane)
                    self.device[r], self.lane[r] = device, lane
                    order.append(r)
                self.orders.append(order)
        known = {lane for lanes in instance.lane_names for lane in lanes}
        for lane in schedule.lanes:
            if lane not in known:
                raise PlanError(f"the plan names the lane {lane!r}; there are {', '.join(sorted(known))}")
        for r, d in enumerate(self.device):
            if d < 0:
                raise PlanError(f"the plan leaves out cluster {instance.names[r]!r}")
        for members in instance.members:
            if len({self.device[r] for r in members}) > 1:
                names = ", ".join(
                    f"{instance.names[r]!r} on {instance.devices[self.device[r]]}" for r in members
                )
                raise PlanError(f"the plan separates clusters that must share a device: {names}")
        self._transfers()
        if schedule.ahead is not None:
            self._hold_back(schedule.ahead)
        self._order_copies(schedule)
        self._times()

    def when(self, step: int) -> tuple[float, float, int]:
        """Return a key that sorts steps by time. Steps that take no time may tie; each then follows those it
        waits for."""
        start, end = self.start[step], self.end[step]
        return start, end, self.turn[step] if start == end else step

    def _misplaced(self, r: int, name: str, device: int, lane: str) -> PlanError:
        """Return the error for a cluster that cannot be in this lane."""
        instance = self.instance
        if r < 0:
            return PlanError(
                f"the plan places {name!r}, which is not a cluster of {instance.costed.graph.name!r}; if it was made "
                "for another graph or machine, plan again"
            )
        if self.device[r] >= 0:
            return PlanError(f"the plan places cluster {name!r} twice, on {self.lane[r]} and {lane}")
        return PlanError(
            f"the plan puts cluster {name!r} on {instance.devices[device]}; "
            f"it can only run on {instance.where(r)}"
        )

    def _transfers(self) -> None:
        """Find the `moves` that bring values to their readers; for each step, `waiting` lists those that wait for it,
        and `missing` counts those it waits for.

        Raises PlanError if a value has no route. Linear in clusters and reads.
        """
        instance, device = self.instance, self.device
        self.moves: list[tuple[int, Hop]] = []
        self.missing = [*map(len, instance.before)]
        # Only steps to which a transfer is added get a list of their own.
        self.waiting: list[Any] = [*instance.after]
        alone = len(set(device)) == 1
        for v, readers in enumerate(instance.readers):
            maker = instance.maker[v]
            if maker >= 0:
                if alone and not instance.deliver[v]:
                    continue
                source = device[maker]
            else:
                source = instance.home[v]
            wanted = {device[r] for r in readers}
            if instance.deliver[v] or instance.carry[v]:
                wanted.update(instance.deliver[v], (device[r] for r in instance.carry[v]))
            wanted.discard(source)
            if wanted:
                self._bring(v, maker, source, wanted)

    def _bring(self, v: int, maker: int, source: int, wanted: set[int]) -> None:
        """Add the hops of a value to all devices that need it, and make its readers wait for them."""
        instance, device, waiting, missing = self.instance, self.device, self.waiting, self.missing
        arrival = {source: maker}
        if instance.holders and instance.values[v] in instance.holders:
            arrival |= dict.fromkeys((device[r] for r in instance.holders[instance.values[v]]), -1)
            wanted -= arrival.keys()
        route = instance.route[source]
        targets = sorted(wanted, key=lambda d: (len(route[d] or ()), d)) if len(wanted) > 1 else wanted
        for target in targets:
            hops = route[target]
            if hops is None:
                raise PlanError(
                    f"no link leads from {instance.devices[source]} to {instance.devices[target]}, where "
                    f"{instance.values[v]!r} is needed; add Link({instance.devices[source]!r}, "
                    f"{instance.devices[target]!r}, …) to the machine"
                )
            for hop in hops:
                if hop.dst not in arrival:
                    step = arrival[hop.dst] = len(waiting)
                    maker_steps = [arrival[hop.src]] if arrival[hop.src] >= 0 else []
                    for p in maker_steps:
                        later = waiting[p]
                        if isinstance(later, tuple):
                            waiting[p] = later = [*later]
                        later.append(step)
                    self.moves.append((v, hop))
                    waiting.append([])
                    missing.append(len(maker_steps))
        first = instance.clusters
        for r in instance.readers[v]:
            step = arrival[device[r]]
            if step >= first:
                waiting[step].append(r)
                missing[r] += 1

    def _hold_back(self, ahead: int) -> None:
        """Make each transfer of streamed state wait for the cluster `ahead` + 1 before its first reader."""
        instance = self.instance
        streamed = set(instance.costed.graph.streamed)
        place = {r: (order, at) for order in self.orders for at, r in enumerate(order)}
        for step, (v, hop) in enumerate(self.moves, instance.clusters):
            if instance.values[v] not in streamed:
                continue
            readers = [place[r] for r in instance.readers[v] if self.device[r] == hop.dst]
            order, at = min(readers, key=lambda each: each[1], default=([], 0))
            if at > ahead:
                before = order[at - ahead - 1]
                self.waiting[before] = [*self.waiting[before], step]
                self.missing[step] += 1

    def _order_copies(self, schedule: Schedule) -> None:
        instance = self.instance
        self.copies: list[list[int] | None] = [None] * len(instance.copy_lanes)
        if not schedule.copies or not instance.costed.machine.queued:
            return
        names = instance.devices
        step = {
            (instance.values[v], names[hop.src], names[hop.dst]): instance.clusters + position
            for position, (v, hop) in enumerate(self.moves)
        }
        for lane, lane_name in enumerate(instance.copy_lanes):
            if lane_name in schedule.copies:
                order = [step[move] for move in schedule.copies[lane_name] if move in step]
                if sorted(order) != [
                    n for n, (_, hop) in enumerate(self.moves, instance.clusters) if hop.lane == lane
                ]:
                    raise PlanError(f"the order of {lane_name} does not hold each transfer of the plan once")
                self.copies[lane] = order

    def _durations(self) -> list[float]:
        """Return the seconds of each step."""
        instance = self.instance
        compute = [seconds[d] for seconds, d in zip(instance.seconds, self.device)]
        return compute + [hop.latency_s + instance.bytes[v] * hop.s_per_byte for v, hop in self.moves]

    def _resources(self) -> list[tuple[int, ...]]:
        """Return the resources that each step acquires, in order: copy queues, then buses, then the host."""
        instance = self.instance
        queues, host = len(instance.copy_lanes), len(instance.copy_lanes) + instance.wires
        needs: list[tuple[int, ...]] = [(host,) if dispatch > 0 else () for dispatch in instance.dispatch]
        of: dict[tuple[int, int], tuple[int, ...]] = {}
        for _, hop in self.moves:
            key = hop.lane, hop.wire
            if key not in of:
                free = hop.lane >= 0 and self.copies[hop.lane] is None
                of[key] = (hop.lane,) * free + (queues + hop.wire,) * (hop.wire >= 0)
            needs.append(of[key])
        return needs

    def _times(self) -> None:
        """Compute all times. Raises PlanError for a deadlock. O((V + E) log V) for V steps, O(V + E) without
        contention."""
        first = self.instance.clusters
        duration, resources = self._durations(), self._resources()
        count, shared = len(duration), len(self.copies) + self.instance.wires + 1
        self.start, self.end, self.ready = start, end, ready = [0.0] * count, [0.0] * count, [0.0] * count
        self.turn = turn = [-1] * count
        missing, waiting = [*self.missing], self.waiting
        behind, clear = self._queued(missing)
        free, held = [0.0] * shared, [False] * shared
        line: list[deque[tuple[int, int]]] = [deque() for _ in free]
        # Requests: time, step, and how many resources it already holds. Steps in `able` are handled first, so no
        # earlier request can still come.
        asking: list[tuple[float, int, int]] = []
        able = [step for step, left in enumerate(missing) if not left]
        finished = 0
        while able or asking:
            if able:
                step = able.pop()
                needs = resources[step]
                time = ready[step]
                if clear[step] > time:
                    time = clear[step]
                if needs:
                    heappush(asking, (time, step, 0))
                    continue
            else:
                time, step, got = heappop(asking)
                needs = resources[step]
                if got < len(needs):
                    resource = needs[got]
                    if held[resource]:
                        line[resource].append((step, got))
                        continue
                    if free[resource] > time:
                        time = free[resource]
                    if got + 1 < len(needs):
                        held[resource] = True
                        heappush(asking, (time, step, got + 1))
                        continue
            start[step] = time
            end[step] = ended = time + duration[step]
            turn[step] = finished
            finished += 1
            for resource in needs:
                free[resource] = ended if step >= first else time + self.instance.dispatch[step]
                held[resource] = bool(line[resource])
                if line[resource]:
                    other, got = line[resource].popleft()
                    heappush(asking, (free[resource], other, got + 1))
            later = behind[step]
            if later >= 0:
                clear[later] = ended
                missing[later] -= 1
                if not missing[later]:
                    able.append(later)
            for later in waiting[step]:
                if ready[later] < ended:
                    ready[later] = ended
                missing[later] -= 1
                if not missing[later]:
                    able.append(later)
        if finished < count:
            raise self._stuck()
        self.makespan = max(end, default=0.0)

    def _queued(self, missing: list[int]) -> tuple[list[int], list[float]]:
        """Return the successor of each step in its queue (-1: none), and the times, still 0, at which steps become
        first in their queues. Add queue predecessors to `missing`."""
        behind = [-1] * len(missing)
        for order in (*self.orders, *(order for order in self.copies if order)):
            for step, later in pairwise(order):
                missing[later] += 1
                behind[step] = later
        return behind, [0.0] * len(missing)

    def _stuck(self) -> PlanError:
        """Return the error for a deadlock of queues, with the steps at their heads."""
        instance, heads = self.instance, []
        names = [lane for lanes in instance.lane_names for lane in lanes] + instance.copy_lanes
        for name, order in zip(names, (*self.orders, *self.copies)):
            step = next((step for step in order or () if self.turn[step] < 0), None)
            if step is not None:
                what = (
                    instance.names[step]
                    if step < instance.clusters
                    else instance.values[self.moves[step - instance.clusters][0]]
                )
                heads.append(f"{what!r} at the head of {name}")
        return PlanError(
            "the orders of the plan wait for each other, so that it would never end: stuck are "
            + ", ".join(heads)
            + "; put each cluster after those whose values it reads"
        )
