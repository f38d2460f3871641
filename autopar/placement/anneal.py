"""Improve list schedules: simulated annealing, each step timed as wires serve it.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
import random
import time

from ..problem import Problem
from ..simulate import Schedule
from .heft import placed
from .neighbours import Neighbourhood
from .network import Network
from .rank import mean_first, urgent_first
from .rebuilding import rebuilt
from .timed import Timed
from .variants import WEIGHTS

STEPS = 1_100_000
"""Runs placed in all schedules together, at most; the search is counted in these, never in seconds."""
EACH = 10_000
"""The same for each run of a graph, but `LEAST` for a small one, unless it is so small that it has few schedules."""
LEAST = 350_000
SQUARE = 700
"""The same for each pair of runs of a tiny graph."""
LARGE = 1_500
"""Runs from which on a graph is too large for this; the steps shrink towards it."""
LISTS = (*WEIGHTS, (0.5, 1.0, 1.0), (1.0, 0.25, 1.0), (0.5, 1.0, 0.3), (1.0, 1.0, 0.0))
"""Weights of the first lists beside those of HEFT, some of which rather stay where they are than move anything."""
FIRST = 128
"""Steps for each run that these lists take together."""
HOTTEST = 0.1
"""Share by which a schedule may become worse at first, at most."""
GAIN = 0.4
"""The same as a share of what the first schedule is above the lower bound: what is near it is searched nearby."""
SLOW = 5_000
"""Steps for each run from which on there is time to cool down from there."""
EARLY = 0.03
"""Weight of when the other devices end: of schedules that end together, as many do where runs are alike, the one that
leaves more room is nearer to a shorter one."""
COOLING = 1 / 30
"""What is left of that share at last."""
ROOM = 8_000
"""Steps for each run from which on there is room for more than one chain, and for placing runs anew."""
CHAINS = 4
"""Chains that begin there, a power of two."""
MOVES, SHIFTS, EXCHANGES, GROUPS, RUINS = 4, 2, 3, 2, 2
"""How often one run is moved to another device, or on its own, two change places, many are moved together, or, where
there is room, placed anew, in proportion."""
TRIED = 20
"""Runs for each of which one change is estimated, of which the best is timed."""
ESTIMATE = 5
"""Steps that an estimate takes."""
KEEP = 6
"""Schedules returned."""
CLOSE = 1e-6
"""Share above the lower bound at which the search ends."""


def anneal(problem: Problem, bound: float, steps: int = STEPS, until: float = math.inf) -> list[Schedule]:
    """The best schedules found, the shortest first.

    The best of a few list schedules is annealed, the `CHAINS` best where there are steps for it. About `steps` runs
    are placed, fewer of a small graph and of a large one, or until `until` of the monotonic clock. Devices, queues and
    wires are in the model; memory caps, the host's dispatch and orders of copies other than first come, first served,
    are not: `simulate` has the last word.
    Nothing for a graph so large that the first lists would be half of the steps, nor for one with runs that may take
    several lanes. Deterministic.
    """
    runs = problem.runs
    steps = int(min(steps, max(min(LEAST, SQUARE * runs * runs), EACH * runs)) * max(0.0, 1 - runs / LARGE))
    queues = sum(len(lanes) for lanes in problem.lane_names)
    if runs < 2 or queues < 2 or problem.modes or steps < 2 * FIRST * runs:
        return []
    network = Network(problem)
    starts = _first(network)
    if not starts:
        return []
    return _annealed(network, starts, bound, steps - FIRST * runs, until)


def refine(
    problem: Problem, bound: float, device: list[int], start: list[float], steps: int, until: float
) -> list[Schedule]:
    """The same from a placement with whatever can start in the order of `start`, not from lists."""
    network = Network(problem)
    timed = Timed(network, device, start, eager=True)
    if timed.makespan == math.inf:
        return []
    return _annealed(network, [timed], bound, steps * max(0.0, 1 - problem.runs / LARGE), until)


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
    network: Network, starts: list[Timed], bound: float, steps: float, until: float
) -> list[Schedule]:
    """The shortest schedules found in about so many steps, the shortest first.

    Chains from the shortest starts cool side by side, and again and again the half of them that has found less is given
    up: in which basin one ends shows early, and hardly depends on how slowly it cools from there.
    """
    above = starts[0].makespan / bound - 1 if bound > 0 else math.inf
    each = steps / network.runs
    hot = min(HOTTEST, GAIN * above) * min(1.0, each / SLOW)
    draw, ruins, count = random.Random(0), 0, 1
    if each >= ROOM:
        ruins, count = RUINS, CHAINS
    begins = starts[:count]
    begun = chains = [_Chain(network, begins[i % len(begins)], bound, draw, ruins) for i in range(count)]
    stages = count.bit_length()
    for stage in range(stages):
        heats = hot * COOLING ** (stage / stages), hot * COOLING ** ((stage + 1) / stages)
        for chain in chains:
            if min(own.best[0].makespan for own in chains) > bound * (1 + CLOSE):
                chain.cool(steps / stages / len(chains), heats, until)
        chains = sorted(chains, key=lambda chain: chain.best[0].makespan)[: max(1, len(chains) // 2)]
    found = dict.fromkeys(timed for chain in begun for timed in chain.best)
    best = sorted(found, key=lambda timed: timed.makespan)[:KEEP]
    return [timed.schedule("search") for timed in best]


def _early(timed: Timed) -> float:
    """`EARLY` of the mean of when devices end, but for the last, in seconds."""
    last = [0.0] * timed.network.devices
    for r in timed.ended:
        # In the order of ends.
        last[timed.device[r]] = timed.end[r]
    return EARLY * (sum(last) - max(last)) / max(1, len(last) - 1)


class _Chain:
    """One schedule that is changed again and again; `best` are the shortest there were, the shortest first."""

    def __init__(self, network: Network, start: Timed, bound: float, draw: random.Random, ruins: int) -> None:
        self.network, self.bound, self.draw, self.ruins = network, bound, draw, ruins
        self.beside = Neighbourhood(network, draw, start)
        self.best = [start]
        self.spent = 0.0

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Go on for about so many steps, from one heat to another, each a share of the shortest makespan."""
        draw, runs = self.draw, self.network.runs
        hot, cold = heats
        few = MOVES + SHIFTS + EXCHANGES
        early = _early(self.beside.now)
        self.spent = 0.0
        while self.spent < steps and time.monotonic() <= until:
            if self.best[0].makespan <= self.bound * (1 + CLOSE):
                break
            heat = hot * (cold / hot) ** (self.spent / steps) * self.best[0].makespan
            limit = self.beside.now.makespan - heat * math.log(1 - draw.random())
            kind = draw.random() * (few + GROUPS + self.ruins)
            if kind < few:
                timed = self._few(limit, heat)
            else:
                timed = self._many(limit) if kind < few + GROUPS else self._anew(limit, heat)
            if timed and timed.makespan <= limit:
                now = _early(timed)
                if timed.makespan + now > limit + early and timed.makespan >= self.best[0].makespan:
                    continue
                early = now
                self.beside.stand(timed)
                self.spent += runs / 2
                if timed.makespan < self.best[0].makespan:
                    self.best.insert(0, timed)
                    del self.best[KEEP:]

    def _few(self, limit: float, heat: float) -> Timed | None:
        """One or two runs elsewhere: of several such changes the one that is estimated best, give or take the heat."""
        draw, beside = self.draw, self.beside
        tried = 1 + self.network.runs // TRIED
        self.spent += ESTIMATE * tried
        ways = MOVES * [beside.moved] + SHIFTS * [beside.shifted] + EXCHANGES * [beside.exchanged]
        chosen, least = None, math.inf
        for _ in range(tried):
            change = ways[int(draw.random() * len(ways))](beside.run(), limit)
            if change:
                length = change[0] - heat * draw.random()
                if length < least:
                    chosen, least = change[1], length
        if not chosen:
            return None
        device, keys = [*beside.device], [*beside.keys]
        for r, d, key in chosen:
            device[r], keys[r] = d, key
        return self._timed(device, keys, limit)

    def _many(self, limit: float) -> Timed | None:
        """Many runs on another device, in whatever order they can start there."""
        self.spent += ESTIMATE
        beside = self.beside
        device = (beside.gathered if self.draw.random() < 0.5 else beside.stretched)(beside.run())
        return self._timed(device, beside.keys, limit, eager=True) if device else None

    def _anew(self, limit: float, heat: float) -> Timed | None:
        """Some runs placed anew."""
        device, places = rebuilt(self.beside, self.beside.run(), heat)
        self.spent += places
        return self._timed(device, self.beside.keys, limit, eager=True) if device else None

    def _timed(self, device: list[int], keys: list[float], limit: float, eager: bool = False) -> Timed:
        for members in self.network.problem.members:
            moved = [device[r] for r in members if device[r] != self.beside.device[r]]
            for r in members if moved else ():
                device[r] = moved[0]
        timed = Timed(self.network, device, keys, limit, self.beside.still(device, keys), eager)
        self.spent += ESTIMATE + len(timed.ended)
        return timed
