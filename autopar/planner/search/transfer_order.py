"""Reorder transfers on shared links where the gain survives FIFO service (`candidates.KEPT`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ..candidates import SHORTER, Entry, Race
from ..model.orders import in_order
from ..model.simulator import Move, Play, Schedule

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
            changed = Schedule(entry.schedule.policy, entry.schedule.lanes, copies)
            # Where more than may be promised is held back, the trial is what first-come wires make of it.
            tried = race.trial(changed, better.makespan * (1 - SHORTER))
            if tried and not tried.over and tried.makespan < better.makespan * (1 - SHORTER):
                better = tried
        if better is best:
            break
        best = better
    return best


def _orders(play: Play) -> Iterator[Mapping[str, tuple[Move, ...]]]:
    """The orders of all wires, with one copy that has waited before one that it has waited for."""
    first, moves = play.problem.runs, play.moves
    order = sorted(range(first, first + len(moves)), key=play.when)
    for at, step in enumerate(order):
        if play.start[step] <= play.ready[step]:
            continue
        lane = moves[step - first][1].lane
        before = [to for to in range(at) if moves[order[to] - first][1].lane == lane]
        for to in reversed(before[-AHEAD:]):
            if play.end[order[to]] <= play.ready[step]:
                break
            changed = [*order[:to], step, *order[to:at], *order[at + 1 :]]
            yield in_order(play.problem, "", (), [moves[other - first] for other in changed]).copies
