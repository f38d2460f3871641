"""Improve list schedules: simulated annealing, each step timed as wires serve it.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
import random
import time
from functools import partial
from typing import Any

from ..problem import Problem
from ..simulate import Play, Schedule
from . import native
from .chain import CLOSE, KEEP, RUINS, Chain
from .heft import placed
from .network import Network
from .rank import mean_first, urgent_first
from .timed import Timed
from .variants import WEIGHTS, polished

STEPS = 1_100_000
"""Runs placed in all schedules together, at most; the search is counted in these, never in seconds."""
EACH = 8_000
"""The same for each run of a graph, but `LEAST` for a small one, unless it is so small that it has few schedules."""
LEAST = 450_000
SQUARE = 700
"""The same for each pair of runs of a tiny graph."""
FASTER, TOGETHER = 20, 30
"""Times as many steps taken where chains are compiled (`native`): by one, which is still in half the time, and by
several, which go on side by side."""
LARGE = 1_500
"""Runs from which on a graph is too large for this; the steps shrink towards it."""
POLISH = 25_000
"""Steps for a schedule of a graph for which there are too few of them to begin with lists."""
LISTS = (*WEIGHTS, (0.5, 1.0, 1.0), (1.0, 0.25, 1.0), (0.5, 1.0, 0.3), (1.0, 1.0, 0.0))
"""Weights of the first lists beside those of HEFT, some of which rather stay where they are than move anything."""
FIRST = 128
"""Steps for each run that these lists take together."""
HOTTEST = 0.1
"""Share by which a schedule may become worse at first, at most."""
GAIN = 0.4
"""The same as a share of what the first schedule is above the lower bound: what is near it is searched nearby."""
SLOW = 5_000
"""Steps for each run from which on there is time to cool down from there; with fewer it begins colder."""
COOLING = 1 / 30
"""What is left of that share at last."""
ROOM = 7_000
"""Steps for each run from which on there is room for placing runs anew, and, as many times more of compiled ones, for
more than one chain."""
CHAINS, COMPILED = 4, 16
"""Chains that begin there."""
STAGES = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
"""Shares of the cooling, and of how many chains as began one is there in each."""
QUARTER = 4
"""Of so many chains one goes on from stage to stage."""
AGREED = 8
"""Chains that have come to the same makespan after which none goes on: hardly any would come to a shorter one."""


def anneal(problem: Problem, bound: float, steps: int = STEPS, until: float = math.inf) -> list[Schedule]:
    """The best schedules found, the shortest first.

    The best of a few list schedules is annealed, the `CHAINS` (`COMPILED`) best where there are steps for it. About
    `steps` runs are placed, or `FASTER` (`TOGETHER`) times as many by compiled code, fewer of a small graph and of a
    large one, or until `until` of the monotonic clock. Devices, queues and wires are in the model; memory caps, the
    host's dispatch and orders of copies other than first come, first served, are not: `simulate` has the last word.
    Nothing for a graph so large that the first lists would be half of the steps, nor for one with runs that may take
    several lanes. Deterministic, where there is a compiler and where there is none.
    """
    runs = problem.runs
    steps = int(min(steps, max(min(LEAST, SQUARE * runs * runs), EACH * runs)) * max(0.0, 1 - runs / LARGE))
    if _settled(problem) or steps < 2 * FIRST * runs:
        return []
    network = Network(problem)
    starts = _first(network)
    if not starts:
        return []
    return _annealed(network, starts, bound, steps - FIRST * runs, until)


def refine(
    problem: Problem,
    bound: float,
    device: list[int],
    start: list[float],
    steps: float,
    until: float,
    keep: int = KEEP,
) -> list[Schedule]:
    """The same in so many steps from a placement with whatever can start in the order of `start`, not from lists; as
    many as `keep` of them."""
    network = Network(problem)
    timed = Timed(network, device, start, eager=True)
    if timed.makespan == math.inf:
        return []
    return _annealed(network, [timed], bound, steps, until, keep)


def polish(problem: Problem, bound: float, play: Play, steps: int, until: float) -> list[Schedule]:
    """What compiled chains make of a schedule that has been played, where `anneal` has too few steps for a graph;
    nothing where they cannot go on from it (`polished`), or after `until`."""
    if _settled(problem) or not polished(problem) or time.monotonic() > until:
        return []
    return refine(problem, bound, play.device, play.start[: problem.runs], min(steps, POLISH), until, keep=1)


def _settled(problem: Problem) -> bool:
    """Whether there is nothing to choose, or runs that may take several lanes, which no list here does."""
    return problem.runs < 2 or sum(map(len, problem.lane_names)) < 2 or bool(problem.modes)


def _first(network: Network) -> list[Timed]:
    """What the first lists lead to, each in its own order and with devices that start whatever they can: the shortest
    of each placement, the shortest first."""
    problem, found = network.problem, []
    lists = [(urgent_first(problem), ahead, 0.0) for ahead in (0.0, 1.0)]
    lists += [(mean_first(problem, rank), ahead, stay) for rank, ahead, stay in LISTS]
    for order, ahead, stay in lists:
        to_go = [[ahead * seconds for seconds in row] for row in network.to_go]
        device, start = placed(problem, order, to_go, stay)
        found += [Timed(network, device, start, eager=eager) for eager in (False, True)]
    placements: dict[tuple[int, ...], Timed] = {}
    for timed in sorted(found, key=lambda timed: timed.makespan):
        if timed.makespan < math.inf:
            placements.setdefault(tuple(timed.device), timed)
    return [*placements.values()]


def _annealed(
    network: Network, starts: list[Timed], bound: float, steps: float, until: float, keep: int = KEEP
) -> list[Schedule]:
    """The shortest schedules found in about so many steps, the shortest first.

    Chains from the shortest starts cool side by side. After each of `STAGES` only the best of them go on, one of
    `QUARTER`, and others begin from the shortest schedules of these: in which basin a chain ends shows long before it
    is cold. Go with the winners (Aldous and Vazirani, FOCS 1994).
    """
    above = starts[0].makespan / bound - 1 if bound > 0 else math.inf
    compiled = native.chains(network)
    begin = compiled or partial(Chain, network)
    several = steps / network.runs >= ROOM
    if compiled:
        steps *= TOGETHER if several else FASTER
    each, count = steps / network.runs, (COMPILED if compiled else CHAINS) if several else 1
    hot = min(HOTTEST, GAIN * above) * min(1.0, each / SLOW) ** 2
    ruins = RUINS if each >= ROOM else 0
    pace = steps / sum(share * max(1, count // among) for share, among in STAGES)
    begun: list[Any] = []
    chains: list[Any] = []
    cooled = 0.0
    for share, among in STAGES:
        chains = sorted(chains, key=_length)
        if len(chains) >= AGREED and _length(chains[AGREED - 1]) <= _length(chains[0]) * (1 + CLOSE):
            break
        chains = chains[: max(1, count // QUARTER)]
        best = [_timed(network, chain.best[0]) for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            chains.append(begin(best[i % len(best)], bound, random.Random(len(begun)), ruins))
            begun.append(chains[-1])
        heats = hot * COOLING**cooled, hot * COOLING ** (cooled + share)
        cooled += share
        chains = _cooled(chains, pace * share, heats, until)
        if _at_bound(chains[-1]):
            begun = chains
            break
    found = {(kept.makespan, *kept.device): kept for chain in begun for kept in chain.best}
    best = sorted(found.values(), key=lambda kept: kept.makespan)[:keep]
    return [_timed(network, kept).schedule("search") for kept in best]


def _timed(network: Network, kept: Any) -> Timed:
    return Timed(network, kept.device, kept.keys, eager=kept.eager)


def _cooled(chains: list[Any], steps: float, heats: tuple[float, float], until: float) -> list[Any]:
    """The chains after so many steps of each, up to the first that has come to the bound: where it does, those behind
    it need not go on, and may or may not have, as there are cores."""

    def cool(at: int) -> None:
        if not any(map(_at_bound, chains[: at + 1])):
            chains[at].cool(steps, heats, until)

    numbers = range(len(chains))
    native.side_by_side(cool, numbers)
    return chains[: next((at for at in numbers if _at_bound(chains[at])), numbers[-1]) + 1]


def _at_bound(chain: Any) -> bool:
    return _length(chain) <= chain.bound * (1 + CLOSE)


def _length(chain: Any) -> float:
    return chain.best[0].makespan
