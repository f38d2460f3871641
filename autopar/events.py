"""A simulation event by event: in-order queues, and wires and a host that whoever asked first has first."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .errors import PlanError

if TYPE_CHECKING:
    from .simulate import Play


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
        _stuck(play, missing, orders, position)


def _stuck(play: Play, missing: list[int], orders: Iterable[list[int] | None], position: list[int]) -> None:
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
