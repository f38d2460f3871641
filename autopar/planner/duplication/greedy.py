"""Compute a run once more where its result is wanted, when that is sooner than its result comes.

The idea of duplication heuristics (Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling",
IEEE TPDS 9(9), 1998), tried on a whole schedule at a time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.costed import repeatable
from ..candidates import SHORTER, Entry
from ..model.simulator import Play
from .prune import Place, places, scheduled

STEPS = 20_000
"""Runs and copies simulated in all: the search is counted in these, never in seconds."""
FEWEST = 10
"""Schedules below which it is not worth beginning: the first few hold too many copies to be good."""
ROUNDS = 4
"""Times that copies are looked for, each in the best found before."""


@dataclass(frozen=True)
class Copy:
    """Run `run` once more on `device`, where it could start at `start`, and how much sooner its result is there."""

    run: int
    device: int
    start: float
    sooner: float


def duplicate(entry: Entry, bound: float) -> Entry:
    """The entry, or a shorter one of the same graph in which some runs are computed again elsewhere.

    All copies that promise anything are tried together, then ever fewer of them. What is returned has a `Problem` of
    its own, that of the graph with its copies.
    """
    best, left = entry, STEPS
    if not repeats(entry):
        return entry
    for _ in range(ROUNDS):
        problem = best.play.problem
        count = problem.runs + len(best.play.moves)
        promising = worthwhile(best.play)
        before = best
        while promising and left >= count and best.makespan > bound * (1 + SHORTER):
            left -= count
            tried = with_copies(best.play, promising)
            if tried and not tried.over and tried.makespan < best.makespan * (1 - SHORTER):
                best = tried
                break
            promising = promising[: len(promising) // 2]
        if best is before:
            break
    return best


def repeats(entry: Entry) -> bool:
    """Whether its graph is small enough for copies to be looked for."""
    return FEWEST * (entry.play.problem.runs + len(entry.play.moves)) <= STEPS


def worthwhile(play: Play) -> list[Copy]:
    """Copies that would have their result sooner than it comes, those that save most first."""
    problem = play.problem
    costed = problem.costed
    there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
    comes: dict[tuple[int, int], float] = {}
    for r, device in enumerate(play.device):
        for v in problem.makes[r]:
            there[v][device] = play.end[r]
    for step, (v, hop) in enumerate(play.moves, problem.runs):
        there[v][hop.dst] = play.end[step]
        if problem.maker[v] >= 0:
            key = problem.maker[v], hop.dst
            comes[key] = max(comes.get(key, 0.0), play.end[step])
    found = []
    for (r, d), arrives in sorted(comes.items()):
        if d not in problem.able[r] or not repeatable(costed, costed.runs[r]):
            continue
        start = 0.0
        for v in problem.reads[r]:
            source, time = next(iter(there[v].items()))
            start = max(start, there[v].get(d, time + problem.travel(v, source, d)))
        end = start + problem.seconds[r][d]
        if end < arrives * (1 - SHORTER):
            found.append(Copy(r, d, start, arrives - end))
            for v in problem.makes[r]:
                there[v][d] = min(end, there[v].get(d, end))
    return sorted(found, key=lambda copy: (-copy.sooner, copy.run, copy.device))


def with_copies(play: Play, copies: Sequence[Copy]) -> Entry | None:
    """The schedule of a simulation with copies put in where they could start, simulated; None when that never
    ends."""
    problem, at = play.problem, places(play)
    free: dict[str, list[tuple[float, float]]] = {lane: [] for own in problem.lane_names for lane in own}
    for place in at.values():
        for lane in place.lanes:
            insort(free[lane], (place.start, place.end))
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.run)):
        name, device = problem.names[copy.run], problem.devices[copy.device]
        lane = min(problem.lane_names[copy.device], key=lambda lane: _idle(free[lane], copy.start))
        place = Place(copy.start, copy.start + problem.seconds[copy.run][copy.device], (lane,), copy=True)
        # What is a copy itself is not copied (`repeatable`).
        at[name, device] = place
        insort(free[lane], (place.start, place.end))
    return scheduled(problem, at)


def _idle(queue: Sequence[tuple[float, float]], start: float) -> float:
    """When a queue has done what begins before `start`."""
    at = bisect_right(queue, start, key=lambda step: step[0])
    return max(start, queue[at - 1][1]) if at else start
