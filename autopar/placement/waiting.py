"""Copies held back for more urgent ones, as far as a plan may promise what that brings (`race.KEPT`)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..simulate import Play, Schedule
from .race import SHORTER, Entry, Race

STEPS = 5_000
"""Runs and copies simulated in all: the search is counted in these, never in seconds."""
AHEAD = 3
"""Places by which a copy is put forward in the order of its wire, at most."""


def hold_back(entry: Entry, bound: float, until: float) -> Entry:
    """The entry, or a shorter one with the same runs in the same lanes, in which wires let copies that have waited go
    before others that asked for them sooner.

    The best of all such changes is made, one after the other, until none makes it shorter; none is tried after `until`
    of the monotonic clock. Where machines have copy queues of their own their orders are those of the policies.
    """
    problem = entry.play.problem
    race, count = Race(problem), problem.runs + len(entry.play.moves)
    best, left = entry, 0 if problem.costed.machine.queued else STEPS
    while left >= count and best.makespan > bound * (1 + SHORTER):
        better = best
        for copies in _orders(best.play):
            if left < count or time.monotonic() > until:
                return better
            left -= count
            tried = race.trial(Schedule(entry.schedule.policy, entry.schedule.lanes, copies))
            if tried and not tried.over and tried.makespan < better.makespan * (1 - SHORTER):
                better = tried
        if better is best:
            break
        best = better
    return best


def _orders(play: Play) -> Iterator[dict[str, tuple[tuple[str, str, str], ...]]]:
    """The orders of all wires, with one copy that has waited before one that it has waited for."""
    problem = play.problem
    orders: dict[int, list[int]] = {lane: [] for lane in range(len(problem.copy_lanes))}
    for step, (_, hop) in enumerate(play.moves, problem.runs):
        if hop.lane >= 0:
            orders[hop.lane].append(step)
    for order in orders.values():
        order.sort(key=play.when)
    names = {
        step: (problem.values[v], problem.devices[hop.src], problem.devices[hop.dst])
        for step, (v, hop) in enumerate(play.moves, problem.runs)
    }
    as_is = {
        problem.copy_lanes[lane]: tuple(names[step] for step in order)
        for lane, order in orders.items()
        if order
    }
    for lane, order in orders.items():
        for at, step in enumerate(order):
            if play.start[step] <= play.ready[step]:
                continue
            for to in range(at - 1, max(-1, at - 1 - AHEAD), -1):
                if play.end[order[to]] <= play.ready[step]:
                    break
                changed = [*order[:to], step, *order[to:at], *order[at + 1 :]]
                yield as_is | {problem.copy_lanes[lane]: tuple(names[step] for step in changed)}
