"""Compute a run once more where its result is wanted, when that is sooner than its result comes.

The idea of duplication heuristics (Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling",
IEEE TPDS 9(9), 1998), tried on a whole schedule at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..problem import Problem
from ..simulate import Play, Schedule
from .again import again, repeatable
from .race import SHORTER, Entry, Race

STEPS = 20_000
"""Runs and copies simulated in all: the search is counted in these, never in seconds."""
FEWEST = 10
"""Schedules below which it is not worth beginning: the first few hold too many copies to be good."""
ROUNDS = 4
"""Times that copies are looked for, each in the best found before."""


@dataclass(frozen=True)
class _Copy:
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
        promising = _promising(problem, best.play)
        before = best
        while promising and left >= count and best.makespan > bound * (1 + SHORTER):
            left -= count
            tried = _with(best.play, promising)
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


def _promising(problem: Problem, play: Play) -> list[_Copy]:
    """Copies that would have their result sooner than it comes, those that save most first."""
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
            found.append(_Copy(r, d, start, arrives - end))
            for v in problem.makes[r]:
                there[v][d] = min(end, there[v].get(d, end))
    return sorted(found, key=lambda copy: (-copy.sooner, copy.run, copy.device))


def _with(play: Play, copies: Sequence[_Copy]) -> Entry | None:
    """The schedule of a simulation with copies put in where they could start, simulated; None when that never
    ends."""
    problem = play.problem
    where = {name: problem.devices[d] for name, d in zip(problem.names, play.device)}
    pairs = [(problem.names[copy.run], problem.devices[copy.device]) for copy in copies]
    costed = again(problem.costed, where, pairs, _stops(problem))
    called = {
        (original, d): copy
        for copy, original in costed.again
        if copy in costed.run
        for d, seconds in enumerate(costed.run[copy].seconds)
        if seconds is not None
    }
    orders: dict[str, list[tuple[float, float, str]]] = {
        lane: [] for lanes in problem.lane_names for lane in lanes
    }
    for r in sorted(range(problem.runs), key=lambda r: (play.start[r], play.end[r], r)):
        for lane in (play.lane[r], *play.more.get(r, ())):
            orders[lane].append((play.start[r], play.end[r], problem.names[r]))
    for copy, (run, _) in sorted(zip(copies, pairs), key=lambda both: (both[0].start, both[0].run)):
        order = min((orders[lane] for lane in problem.lane_names[copy.device]), key=_idle_at(copy.start))
        at = bisect_right(order, copy.start, key=lambda step: step[0])
        end = copy.start + problem.seconds[copy.run][copy.device]
        order.insert(at, (copy.start, end, called[run, copy.device]))
    names = {lane: tuple(name for _, _, name in order) for lane, order in orders.items()}
    return Race(Problem(costed)).trial(Schedule("with copies", names))


def _stops(problem: Problem) -> dict[tuple[str, str], str]:
    """The device between, for two devices that no link joins."""
    names = problem.devices
    return {
        (names[s], names[d]): names[hops[0].dst]
        for s, row in enumerate(problem.route)
        for d, hops in enumerate(row)
        if hops and len(hops) > 1
    }


def _idle_at(start: float) -> Callable[[Sequence[tuple[float, float, str]]], float]:
    """When a queue has done what begins before `start`."""

    def idle(order: Sequence[tuple[float, float, str]]) -> float:
        at = bisect_right(order, start, key=lambda step: step[0])
        return max(start, order[at - 1][1]) if at else start

    return idle
