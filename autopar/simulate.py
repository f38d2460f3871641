"""When everything happens, given who runs what and in which order: an event-driven simulation of a
`Schedule`.

Every queue is in order; whatever can start, starts. A wire and the one host that dispatches every run (the
GIL) serve whoever asked first. O((V + E) log V) for V runs and transfers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .cost import CostedGraph
from .errors import PlanError
from .liveness import memory
from .plans import Placed, Transfer
from .problem import Hop, Problem
from .timeline import Memory

Move = tuple[str, str, str]
"""A value, the device it comes from and the device it goes to: one entry of a copy queue."""


@dataclass(frozen=True)
class Schedule:
    """What a policy decides: the runs of each compute queue in order, and perhaps the order of each copy
    queue.

    Which values move follows from where the runs are. A copy queue that `copies` does not name takes them as
    they become ready.
    """

    policy: str
    lanes: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, tuple[Move, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """A schedule with times, in seconds from the start of the call. Sorted by start, as in `Plan`."""

    placed: tuple[Placed, ...]
    transfers: tuple[Transfer, ...]
    resident: tuple[tuple[str, str], ...]
    memory: tuple[Memory, ...]
    makespan: float


def simulate(costed: CostedGraph, schedule: Schedule, problem: Problem | None = None) -> Timing:
    """Start everything as early as the orders allow.

    `problem` spares building it again. Raises PlanError for a run that is missing, named twice, unknown or on
    a device where it cannot run, for a transfer without a way, and for orders that wait for each other.
    """
    play = Play(problem or Problem(costed), schedule)
    return timing(play)


def timing(play: Play) -> Timing:
    """What a simulation found, in names."""
    problem, first = play.problem, play.problem.runs
    placed = [
        Placed(problem.names[r], problem.devices[play.device[r]], play.lane[r], play.start[r], play.end[r])
        for r in sorted(range(first), key=lambda r: (play.start[r], play.end[r], r))
    ]
    transfers = []
    for number in sorted(range(first, len(play.start)), key=lambda n: (play.start[n], play.end[n], n)):
        v, hop = play.moves[number - first]
        ends = problem.devices[hop.src], problem.devices[hop.dst]
        times = play.start[number], play.end[number], play.ready[number]
        transfers.append(
            Transfer(problem.values[v], *ends, problem.copy_lanes[hop.lane], *times, problem.bytes[v])
        )
    resident = residency(problem, play.device)
    return Timing(tuple(placed), tuple(transfers), resident, memory(problem, play), play.makespan)


def residency(problem: Problem, device: list[int]) -> tuple[tuple[str, str], ...]:
    """(state, device) for each device that reads resident state, its home included, in the order of the
    graph."""
    costed = problem.costed
    found: dict[str, dict[int, None]] = {name: {} for name in costed.graph.state if name in costed.resident}
    for r, run in enumerate(costed.runs):
        for name in run.reads:
            if name in found:
                found[name][device[r]] = None
    return tuple((name, problem.devices[d]) for name, devices in found.items() for d in sorted(devices))


class Play:
    """One run of the simulation. Steps are numbers: runs first, then `moves`, the (value, hop) pairs that
    follow.

    `start`, `end` and `ready` hold seconds for each step; `device` and `lane` where each run is; `makespan`
    is when all runs have ended and everything has been delivered.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem = problem
        self.device = [-1] * problem.runs
        self.lane = [""] * problem.runs
        self.orders: list[list[int]] = []
        for device, lanes in enumerate(problem.lane_names):
            for lane in lanes:
                self.orders.append(
                    [self._assign(name, device, lane) for name in schedule.lanes.get(lane, ())]
                )
        known = {lane for lanes in problem.lane_names for lane in lanes}
        for lane in schedule.lanes:
            if lane not in known:
                raise PlanError(f"the plan names the lane {lane!r}; there are {', '.join(sorted(known))}")
        for r, d in enumerate(self.device):
            if d < 0:
                raise PlanError(f"the plan leaves out run {problem.names[r]!r}")
        for members in problem.members:
            if len({self.device[r] for r in members}) > 1:
                names = ", ".join(
                    f"{problem.names[r]!r} on {problem.devices[self.device[r]]}" for r in members
                )
                raise PlanError(f"the plan parts runs that must share a device: {names}")
        self.moves: list[tuple[int, Hop]] = []
        self.needs: list[list[int]] = [[] for _ in range(problem.runs)]
        for v in range(len(problem.values)):
            self._move(v)
        self._order_copies(schedule)
        count = len(self.needs)
        self.start, self.end, self.ready = [0.0] * count, [0.0] * count, [0.0] * count
        self.makespan = 0.0
        self._run()

    def _assign(self, name: str, device: int, lane: str) -> int:
        problem = self.problem
        r = problem.number.get(name, -1)
        if r < 0:
            raise PlanError(f"the plan places {name!r}, which is no run of {problem.costed.graph.name!r}")
        if self.device[r] >= 0:
            raise PlanError(f"the plan places run {name!r} twice, on {self.lane[r]} and {lane}")
        if device not in problem.allowed[r]:
            raise PlanError(
                f"the plan puts run {name!r} on {problem.devices[device]}; "
                f"it can only run on {problem.where(r)}"
            )
        self.device[r], self.lane[r] = device, lane
        return r

    def _move(self, v: int) -> None:
        """Add the hops that bring a value to all devices that want it, and make its readers wait for them."""
        problem = self.problem
        maker = problem.maker[v]
        source = self.device[maker] if maker >= 0 else problem.home[v]
        arrival = {source: maker}
        if problem.values[v] in problem.holders:
            arrival |= dict.fromkeys((self.device[r] for r in problem.holders[problem.values[v]]), -1)
        readers = (*problem.readers[v], *problem.carry[v])
        wanted = dict.fromkeys((*(self.device[r] for r in readers), *problem.deliver[v]))
        if wanted.keys() - arrival.keys():
            for target in sorted(wanted, key=lambda d: (len(problem.route[source][d] or ()), d)):
                hops = problem.route[source][target]
                if hops is None:
                    raise PlanError(
                        f"no link leads from {problem.devices[source]} to {problem.devices[target]}, where "
                        f"{problem.values[v]!r} is needed; add Link({problem.devices[source]!r}, "
                        f"{problem.devices[target]!r}, …) to the machine"
                    )
                for hop in hops:
                    if hop.dst not in arrival:
                        arrival[hop.dst] = len(self.needs)
                        self.moves.append((v, hop))
                        there = (r for r in problem.readers[v] if self.device[r] == hop.dst)
                        made = [arrival[hop.src]] if arrival[hop.src] >= 0 else []
                        self.needs.append([*made, *problem.versions(v, there)])
        for r in problem.readers[v]:
            step = arrival[self.device[r]]
            if step >= problem.runs:
                self.needs[r].append(step)

    def _order_copies(self, schedule: Schedule) -> None:
        problem = self.problem
        self.copies: list[list[int] | None] = [None] * len(problem.copy_lanes)
        if not schedule.copies:
            return
        names = problem.devices
        step = {
            (problem.values[v], names[hop.src], names[hop.dst]): problem.runs + position
            for position, (v, hop) in enumerate(self.moves)
        }
        for lane, lane_name in enumerate(problem.copy_lanes):
            if lane_name in schedule.copies:
                given = [step[move] for move in schedule.copies[lane_name] if move in step]
                own = [n for n in step.values() if self.moves[n - problem.runs][1].lane == lane]
                if sorted(given) != own:
                    raise PlanError(f"the order of {lane_name} does not hold each transfer of the plan once")
                self.copies[lane] = given

    def _run(self) -> None:
        problem, first = self.problem, self.problem.runs
        count = len(self.needs)
        needs, start, end, ready = self.needs, self.start, self.end, self.ready
        waiting: list[list[int]] = [[] for _ in range(count)]
        missing = [len(earlier) for earlier in needs]
        for step, earlier in enumerate(needs):
            for p in earlier:
                waiting[p].append(step)
        for r, before in enumerate(problem.before):
            missing[r] += len(before)
        duration = [problem.seconds[r][d] for r, d in enumerate(self.device)]
        duration += [hop.seconds(problem.bytes[v]) for v, hop in self.moves]

        # A queue is (its order or None, position); its head asks for the shared resource it needs, then runs.
        orders: list[list[int] | None] = [*self.orders, *self.copies]
        queue_of = [0] * count
        for queue, order in enumerate(self.orders):
            for r in order:
                queue_of[r] = queue
        for number, (_, hop) in enumerate(self.moves, first):
            queue_of[number] = len(self.orders) + hop.lane
        arrived: list[deque[int]] = [deque() for _ in orders]
        position = [0] * len(orders)
        busy = [False] * len(orders)
        shared_of = [0 if dispatch > 0 else -1 for dispatch in problem.dispatch]
        shared_of += [1 + hop.wire if hop.wire >= 0 else -1 for _, hop in self.moves]
        taken = [False] * (1 + problem.wires)
        asking: list[deque[int]] = [deque() for _ in taken]

        events: list[tuple[float, int, int]] = []
        free, done, able = 0, 1, 2
        for step in range(count):
            if not missing[step]:
                heapq.heappush(events, (0.0, able, step))
        finished = 0

        def begin(step: int, now: float) -> None:
            start[step] = now
            end[step] = now + duration[step]
            shared = shared_of[step]
            if shared >= 0:
                taken[shared] = True
                held = problem.dispatch[step] if step < first else duration[step]
                heapq.heappush(events, (now + held, free, shared))
            heapq.heappush(events, (end[step], done, step))

        def advance(queue: int, now: float) -> None:
            order = orders[queue]
            if busy[queue]:
                return
            if order is None:
                if not arrived[queue]:
                    return
                step = arrived[queue].popleft()
            else:
                if position[queue] == len(order) or missing[order[position[queue]]]:
                    return
                step = order[position[queue]]
                position[queue] += 1
            busy[queue] = True
            shared = shared_of[step]
            if shared >= 0 and taken[shared]:
                asking[shared].append(step)
            else:
                begin(step, now)

        while events:
            now, kind, item = heapq.heappop(events)
            if kind == free:
                taken[item] = False
                if asking[item]:
                    begin(asking[item].popleft(), now)
            elif kind == done:
                finished += 1
                busy[queue_of[item]] = False
                for later in (*waiting[item], *(problem.after[item] if item < first else ())):
                    missing[later] -= 1
                    if not missing[later]:
                        heapq.heappush(events, (now, able, later))
                advance(queue_of[item], now)
            else:
                ready[item] = now
                if orders[queue_of[item]] is None:
                    arrived[queue_of[item]].append(item)
                advance(queue_of[item], now)
        if finished < count:
            self._stuck(missing, orders, position)
        self.makespan = max(end, default=0.0)

    def _stuck(self, missing: list[int], orders: Iterable[list[int] | None], position: list[int]) -> None:
        heads = []
        for order, at in zip(orders, position):
            if order is not None and at < len(order):
                step = order[at]
                if step < self.problem.runs:
                    heads.append(f"{self.problem.names[step]!r} at the head of {self.lane[step]}")
                else:
                    v, hop = self.moves[step - self.problem.runs]
                    heads.append(
                        f"{self.problem.values[v]!r} at the head of {self.problem.copy_lanes[hop.lane]}"
                    )
        raise PlanError(
            "the orders of the plan wait for each other, so that it would never end: stuck are "
            + ", ".join(heads)
            + "; put each run after those whose values it reads"
        )
