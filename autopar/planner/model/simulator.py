"""When everything happens, given who runs what and in which order: an event-driven simulation of a
`Schedule`.

Every queue is in order; whatever can start, starts. A wire and the one host that dispatches every run (the
GIL) serve whoever asked first. O((V + E) log V) for V runs and transfers, O(V + E) where nothing has to be asked for.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...errors import PlanError
from .problem import Problem
from .transfers import Steps

Move = tuple[str, str, str]
"""A value, the device it comes from and the device it goes to: one entry of a copy queue."""


@dataclass(frozen=True)
class Schedule:
    """What a policy decides: the runs of each compute queue in order, and perhaps the order of each copy
    queue. A run that takes several lanes is named in each of them.

    Which values move follows from where the runs are. A copy queue that `copies` does not name takes them as
    they become ready; where `first_come` they all do, and `copies` are the orders of what becomes ready at one moment.
    """

    policy: str
    lanes: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, tuple[Move, ...]] = field(default_factory=dict)
    first_come: bool = False


class Play:
    """One run of the simulation. Steps are numbers: runs first, then `moves`, the (value, hop) pairs that
    follow.

    `start`, `end` and `ready` hold seconds for each step, `turn` numbers that grow along every queue and from each step
    to those that wait for it; `device` and `lane` say where each run is, `more` the other lanes of runs that take
    several; `makespan` is when all runs have ended and everything has been delivered.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem = problem
        self.device = [-1] * problem.runs
        self.lane = [""] * problem.runs
        self.more: dict[int, list[str]] = {}
        self.orders: list[list[int]] = []
        for device, lanes in enumerate(problem.lane_names):
            for lane in lanes:
                order = []
                for name in schedule.lanes.get(lane, ()):
                    r = problem.number.get(name, -1)
                    if r >= 0 and self.device[r] < 0 and device in problem.allowed[r]:
                        self.device[r], self.lane[r] = device, lane
                    else:
                        self._again(r, name, device, lane)
                    order.append(r)
                self.orders.append(order)
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
        self.steps = Steps(problem, self.device)
        self.moves = self.steps.moves
        self._order_copies(schedule)
        count = problem.runs + len(self.moves)
        self.start, self.end, self.ready = [0.0] * count, [0.0] * count, [0.0] * count
        self.turn = [0] * count
        duration = [seconds[d] for seconds, d in zip(problem.seconds, self.device)]
        if problem.modes:
            self._take(duration)
        duration += [hop.latency_s + problem.bytes[v] * hop.s_per_byte for v, hop in self.moves]
        if not self._in_turn(duration):
            serve(self, duration)
        self.makespan = max(self.end, default=0.0)

    def when(self, step: int) -> tuple[float, float, int]:
        """What steps are sorted by, so that each comes after those it waits for."""
        return self.start[step], self.end[step], self.turn[step]

    def _again(self, r: int, name: str, device: int, lane: str) -> None:
        """Note one more lane of a run that takes several; else say why it cannot be in this lane."""
        problem = self.problem
        if r < 0:
            raise PlanError(f"the plan places {name!r}, which is no run of {problem.costed.graph.name!r}")
        if self.device[r] == device and (r, device) in problem.modes and lane != self.lane[r]:
            self.more.setdefault(r, []).append(lane)
        elif self.device[r] >= 0:
            raise PlanError(f"the plan places run {name!r} twice, on {self.lane[r]} and {lane}")
        else:
            raise PlanError(
                f"the plan puts run {name!r} on {problem.devices[device]}; "
                f"it can only run on {problem.where(r)}"
            )

    def _order_copies(self, schedule: Schedule) -> None:
        problem = self.problem
        self.copies: list[list[int] | None] = [None] * len(problem.copy_lanes)
        self.rank: Sequence[int] = range(problem.runs + len(self.moves))
        """Numbers of the steps by which those go that ask for a queue at one moment."""
        if not schedule.copies:
            return
        names = problem.devices
        step = {
            (problem.values[v], names[hop.src], names[hop.dst]): problem.runs + position
            for position, (v, hop) in enumerate(self.moves)
        }
        own: list[list[int]] = [[] for _ in problem.copy_lanes]
        for number, (_, hop) in enumerate(self.moves, problem.runs):
            if hop.lane >= 0:
                own[hop.lane].append(number)
        for lane, lane_name in enumerate(problem.copy_lanes):
            if lane_name in schedule.copies:
                given = [step[move] for move in schedule.copies[lane_name] if move in step]
                if sorted(given) != own[lane]:
                    raise PlanError(f"the order of {lane_name} does not hold each transfer of the plan once")
                self.copies[lane] = given
        if schedule.first_come:
            rank = [*self.rank]
            for order in self.copies:
                for number, transfer in zip(sorted(order or ()), order or ()):
                    rank[transfer] = number
            self.rank, self.copies = rank, [None] * len(self.copies)

    def _in_turn(self, duration: list[float]) -> bool:
        """Set the times where queues share nothing, so that a step starts as soon as what it waits for and the step
        before it have ended; False where that is not so. Queues without an order take who is ready first."""
        problem, first = self.problem, self.problem.runs
        hops = [hop for _, hop in self.moves]
        if self.more or any(problem.dispatch) or any(hop.wire >= 0 for hop in hops):
            return False
        if not hops and sum(map(bool, self.orders)) == 1:
            return self._alone(duration)
        start, end, ready, turn, rank = self.start, self.end, self.ready, self.turn, self.rank
        missing, waiting = [*self.steps.missing], self.steps.waiting
        behind, ahead = [-1] * len(end), [-1] * len(end)
        for order in (*self.orders, *(order for order in self.copies if order)):
            for step, later in pairwise(order):
                behind[step], ahead[later] = later, step
                missing[later] += 1
        queue = [-1] * first
        queue += [hop.lane if hop.lane >= 0 and self.copies[hop.lane] is None else -1 for hop in hops]
        free = [0.0] * len(self.copies)
        able = [step for step, count in enumerate(missing) if not count and queue[step] < 0]
        # What asks for a queue: all else that is able goes first, so that nobody can ask for it earlier any more.
        asking = [
            (0.0, rank[step], step) for step, count in enumerate(missing) if not count and queue[step] >= 0
        ]
        heapq.heapify(asking)
        finished = 0
        while able or asking:
            if able:
                step = able.pop()
                time, last = ready[step], ahead[step]
                if last >= 0 and end[last] > time:
                    time = end[last]
                start[step] = time
                end[step] = time = time + duration[step]
                later = behind[step]
                if later >= 0:
                    missing[later] -= 1
                    if not missing[later]:
                        able.append(later)
            else:
                time, _, step = heapq.heappop(asking)
                own = queue[step]
                start[step] = time = max(time, free[own])
                end[step] = free[own] = time = time + duration[step]
            turn[step] = finished
            finished += 1
            for later in waiting[step]:
                if ready[later] < time:
                    ready[later] = time
                missing[later] -= 1
                if not missing[later]:
                    if queue[later] < 0:
                        able.append(later)
                    else:
                        heapq.heappush(asking, (ready[later], rank[later], later))
        return finished == len(end)

    def _alone(self, duration: list[float]) -> bool:
        """The same where all runs are in one lane: each starts when the one before it has ended."""
        time, begun, end = 0.0, [False] * len(self.end), self.end
        longest = max(self.orders, key=len)
        for turn, r in enumerate(longest):
            self.turn[r] = turn
            for p in self.problem.before[r]:
                if not begun[p]:
                    return False
                if end[p] > self.ready[r]:
                    self.ready[r] = end[p]
            begun[r] = True
            self.start[r] = time
            end[r] = time = time + duration[r]
        return True

    def _take(self, duration: list[float]) -> None:
        """Set the seconds of runs that could take several lanes by how many they do take."""
        problem = self.problem
        for r, d in enumerate(self.device):
            if (r, d) in problem.modes:
                ways = dict(problem.modes[r, d])
                lanes = 1 + len(self.more.get(r, ()))
                if lanes not in ways:
                    raise PlanError(
                        f"the plan gives run {problem.names[r]!r} {lanes} lanes of {problem.devices[d]}; "
                        f"it can take {' or '.join(map(str, ways))}"
                    )
                duration[r] = ways[lanes]


def serve(play: Play, duration: Sequence[float]) -> None:
    """Set the times of all steps, each of which lasts `duration` seconds.

    Whoever asks first for what is shared has it first. Raises PlanError for orders that wait for each other.
    O((V + E) log V) for V steps.
    """
    problem, first = play.problem, play.problem.runs
    count = len(play.end)
    start, end, ready = play.start, play.end, play.ready
    missing, waiting = [*play.steps.missing], play.steps.waiting

    # A queue is (its order or None, position); its head asks for the shared resource it needs, then runs. A run
    # that takes several lanes waits until it is the head of all of them.
    orders: list[list[int] | None] = [*play.orders, *play.copies]
    queue_of = [0] * count
    wide: dict[int, list[int]] = {r: [] for r in play.more}
    for queue, order in enumerate(play.orders):
        for r in order:
            queue_of[r] = queue
            if r in wide:
                wide[r].append(queue)
    for number, (_, hop) in enumerate(play.moves, first):
        queue_of[number] = len(play.orders) + hop.lane if hop.lane >= 0 else -1
    arrived: list[deque[int]] = [deque() for _ in orders]
    position = [0] * len(orders)
    busy = [False] * len(orders)
    shared_of = [0 if dispatch > 0 else -1 for dispatch in problem.dispatch]
    shared_of += [1 + hop.wire if hop.wire >= 0 else -1 for _, hop in play.moves]
    taken = [False] * (1 + problem.wires)
    asking: list[deque[int]] = [deque() for _ in taken]

    # What asks at one moment asks in the order of `rank`.
    events: list[tuple[float, int, int, int]] = []
    rank = play.rank
    free, done, able = 0, 1, 2
    for step in range(count):
        if not missing[step]:
            heapq.heappush(events, (0.0, able, rank[step], step))
    finished = 0
    turns = itertools.count()

    def begin(step: int, now: float) -> None:
        start[step] = now
        play.turn[step] = next(turns)
        end[step] = now + duration[step]
        shared = shared_of[step]
        if shared >= 0:
            taken[shared] = True
            held = problem.dispatch[step] if step < first else duration[step]
            heapq.heappush(events, (now + held, free, shared, shared))
        heapq.heappush(events, (end[step], done, step, step))

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
            if step in wide:
                for q in wide[step]:
                    if busy[q] or position[q] == len(play.orders[q]) or play.orders[q][position[q]] != step:
                        return
                for q in wide[step]:
                    position[q] += q != queue
                    busy[q] = True
            position[queue] += 1
        busy[queue] = True
        shared = shared_of[step]
        if shared >= 0 and taken[shared]:
            asking[shared].append(step)
        else:
            begin(step, now)

    while events:
        now, kind, _, item = heapq.heappop(events)
        if kind == free:
            taken[item] = False
            if asking[item]:
                begin(asking[item].popleft(), now)
        elif kind == done:
            finished += 1
            own = wide.get(item) or ((queue_of[item],) if queue_of[item] >= 0 else ())
            for queue in own:
                busy[queue] = False
            for later in waiting[item]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(events, (now, able, rank[later], later))
            for queue in own:
                advance(queue, now)
        elif queue_of[item] < 0:
            ready[item] = now
            begin(item, now)
        else:
            ready[item] = now
            if orders[queue_of[item]] is None:
                arrived[queue_of[item]].append(item)
            advance(queue_of[item], now)
    if finished < count:
        _stuck(play, orders, position)


def _stuck(play: Play, orders: Iterable[list[int] | None], position: list[int]) -> None:
    heads = []
    for order, at in zip(orders, position):
        if order is not None and at < len(order):
            step = order[at]
            if step < play.problem.runs:
                heads.append(f"{play.problem.names[step]!r} at the head of {play.lane[step]}")
            else:
                v, hop = play.moves[step - play.problem.runs]
                heads.append(f"{play.problem.values[v]!r} at the head of {play.problem.copy_lanes[hop.lane]}")
    raise PlanError(
        "the orders of the plan wait for each other, so that it would never end: stuck are "
        + ", ".join(heads)
        + "; put each run after those whose values it reads"
    )
