"""Improve list schedules: simulated annealing, each step timed as wires serve it.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...system.process import cores
from ..lists.heft import placed
from ..lists.ranking import cost_to_go, mean_first, urgent_first
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..native import searches
from .core import CLOSE, KEEP, Chain, Listed, Timed
from .large import WEIGHTS, polished

POLICY = "search"
"""Policy of the schedules found by annealing."""
STEPS = 1_100_000
"""Clusters placed in all schedules together, at most; the search is counted in these, never in seconds."""
EACH = 8_000
"""The same for each cluster of a graph, but `LEAST` for a small one, unless it has few schedules."""
LEAST = 450_000
SQUARE = 700
"""The same for each pair of clusters of a tiny graph."""
FASTER = 20
TOGETHER = 24
"""Times as many steps taken by chains, which place a cluster in less time than lists do: by one, and by several
side by side."""
LARGE = 1_500
"""Clusters from which on a graph is too large for this; the steps shrink towards it."""
POLISH = 25_000
"""Steps for a schedule of a graph for which there are too few of them to begin with lists."""
LISTS = (
    *WEIGHTS,
    (0.5, 1.0, 1.0),
    (1.0, 0.25, 1.0),
    (0.5, 1.0, 0.3),
    (1.0, 1.0, 0.0),
)
"""Weights of the first lists beside those of HEFT, some of which rather stay where they are than move anything."""
FIRST = 128
"""Steps for each cluster that these lists take together."""
HOTTEST = 0.1
"""Share by which a schedule may become worse at first, at most."""
GAIN = 0.4
"""The same as a share of what the first schedule is above the lower bound: what is near it is searched nearby."""
SLOW = 5_000
"""Steps for each cluster from which on there is time to cool down from there; with fewer it begins colder."""
ROOM = 7_000
"""Steps of lists for each cluster from which on there is room for more than one chain."""
CHAINS = 16
"""Chains that begin there."""
STAGES = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
"""Shares of the cooling, and of how many chains as began one is there in each."""
QUARTER = 4
"""Of so many chains one goes on from stage to stage."""
AGREED = 8
"""Chains that have come to the same makespan after which none goes on: hardly any would come to a shorter one."""
SEED = 3_000
"""Of the first chain; the others count from there."""
COOLING = 1 / 30
"""Final temperature of the annealing as a share of the initial one."""


def anneal(instance: Instance, bound: float, steps: int = STEPS, until: float = math.inf) -> list[Schedule]:
    """The best schedules found, the shortest first.

    The best of a few list schedules is annealed, the `CHAINS` best where there are steps for it. About `FASTER`
    (`TOGETHER`) times `steps` clusters are placed, fewer of a small graph and of a large one, or until `until` of the
    monotonic clock. Devices, queues and wires are in the model; memory caps, the host's dispatch and orders of copies
    other than first come, first served, are not: `simulate` has the last word. Nothing for a graph so large that the
    first lists would be half of the steps, nor for one with clusters that may take several lanes, nor without the
    native search. Deterministic.
    """
    clusters = instance.clusters
    most = max(min(LEAST, SQUARE * clusters * clusters), EACH * clusters)
    steps = int(min(steps, most) * max(0.0, 1 - clusters / LARGE))
    if _settled(instance) or steps < 2 * FIRST * clusters or not searches():
        return []
    starts = _first(instance)
    if not starts:
        return []
    return _annealed(instance, starts, bound, steps - FIRST * clusters, until, KEEP)


def polish(instance: Instance, bound: float, play: Play, steps: int, until: float) -> list[Schedule]:
    """Refine a simulated schedule by annealing chains, where `anneal` has too few steps for a graph; nothing where they
    cannot go on from it (`polished`), or after `until`."""
    if _settled(instance) or not polished(instance) or time.monotonic() > until:
        return []
    timed = Timed(instance, play.device, play.start[: instance.clusters], eager=True)
    if timed.makespan == math.inf:
        return []
    return _annealed(instance, [timed], bound, min(steps, POLISH), until, keep=1)


def _settled(instance: Instance) -> bool:
    """Return True if there is nothing to choose, or clusters that may take several lanes, which no list here does."""
    return instance.clusters < 2 or sum(map(len, instance.lane_names)) < 2 or bool(instance.modes)


def _first(instance: Instance) -> list[Timed]:
    """Initial solutions of annealing: the first lists, each in its own order and with devices that start whatever they
    can (non-delay): the shortest of each placement, the shortest first."""
    found, tail = [], cost_to_go(instance)
    lists = [(urgent_first(instance), ahead, 0.0) for ahead in (0.0, 1.0)]
    lists += [(mean_first(instance, rank), ahead, stay) for rank, ahead, stay in LISTS]
    for order, ahead, stay in lists:
        to_go = [[ahead * seconds for seconds in row] for row in tail]
        device, start = placed(instance, order, to_go, stay)
        found += [Timed(instance, device, start, eager=eager) for eager in (False, True)]
    placements: dict[tuple[int, ...], Timed] = {}
    for timed in sorted(found, key=lambda timed: timed.makespan):
        if timed.makespan < math.inf:
            placements.setdefault(tuple(timed.device), timed)
    return [*placements.values()]


def _annealed(
    instance: Instance, starts: list[Timed], bound: float, steps: float, until: float, keep: int
) -> list[Schedule]:
    """The shortest schedules found in about so many steps, the shortest first."""
    above = starts[0].makespan / bound - 1 if bound > 0 else math.inf
    several = steps / instance.clusters >= ROOM
    steps *= TOGETHER if several else FASTER
    hot = min(HOTTEST, GAIN * above) * min(1.0, steps / instance.clusters / SLOW) ** 2
    found = winners(instance, starts, bound, steps, hot, until, keep, CHAINS if several else 1)
    return [timed.schedule(POLICY) for timed in found]


def winners(
    instance: Instance,
    starts: Sequence[Listed],
    bound: float,
    steps: float,
    hot: float,
    until: float,
    keep: int,
    count: int,
    copies: int = 0,
) -> list[Timed]:
    """The `keep` shortest that any chain found, each placement once, the shortest first.

    About `steps` steps are taken by `count` chains, which cool side by side from the heat `hot`, a share of the
    makespan; `copies` is how often clusters are copied (`Chain`). In which basin a chain ends shows long before it
    is cold, so the best go on (Aldous and Vazirani, "Go with the winners algorithms", FOCS 1994): after each of
    `STAGES` one of `QUARTER`, and others begin from the shortest schedules of these. The end is at `until` of the
    monotonic clock, where a chain is at the bound, or where `AGREED` of them agree.
    """
    pace = steps / sum(share * max(1, count // among) for share, among in STAGES)
    begun: list[Chain] = []
    chains: list[Chain] = []
    cooled = 0.0
    for share, among in STAGES:
        chains = sorted(chains, key=lambda chain: chain.rank)
        if len(chains) >= AGREED and chains[AGREED - 1].makespan <= chains[0].makespan * (1 + CLOSE):
            break
        chains = chains[: max(1, count // QUARTER)]
        best = [chain.best[0] for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            start = best[i % len(best)]
            chains.append(Chain(instance, start, bound, SEED + len(begun), copies))
            begun.append(chains[-1])
        heats = hot * COOLING**cooled, hot * COOLING ** (cooled + share)
        cooled += share
        chains = _cooled(chains, pace * share, heats, until)
        if _at_bound(chains[-1]):
            begun = chains
            break
    found = {(kept.makespan, *kept.device): kept for chain in begun for kept in chain.best}
    best = sorted(found.values(), key=lambda kept: (kept.over, kept.makespan))[:keep]
    return [Timed(instance, kept.device, kept.keys, eager=kept.eager, of=kept.of) for kept in best]


def _cooled(chains: list[Chain], steps: float, heats: tuple[float, float], until: float) -> list[Chain]:
    """The chains after so many steps of each, up to the first that has come to the bound: where it does, those behind
    it need not go on, and may or may not have, as there are cores."""

    def cool(at: int) -> None:
        if not any(map(_at_bound, chains[: at + 1])):
            chains[at].cool(steps, heats, until)

    numbers = range(len(chains))
    # Chains leave the interpreter to others; what is raised there is raised here.
    with ThreadPoolExecutor(min(len(chains), cores())) as pool:
        list(pool.map(cool, numbers))
    return chains[: next((at for at in numbers if _at_bound(chains[at])), numbers[-1]) + 1]


def _at_bound(chain: Chain) -> bool:
    return chain.makespan <= chain.bound * (1 + CLOSE)
