"""Simulated annealing from list schedules, timed with FIFO buses; if caps are exceeded, among placements that
keep them or reduce the excess (`pack`).

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...system.process import cores
from ..candidates import Race
from ..lists.heft import cost_to_go, placed, urgent_first
from ..model.instance import Instance
from ..model.simulator import Schedule, Simulation
from ..native import searches
from . import CLOSE, KEEP, Annealing, Listed, capped, evaluate, non_delay
from .large import WEIGHTS

POLICY = "search"
"""Policy name of schedules found by annealing."""
STEPS = 1_100_000
"""Limit on the clusters placed in all schedules together. The search counts these, never seconds."""
EACH = 8_000
"""Limit on placed clusters for each cluster of a graph; at least `LEAST` in all, if `SQUARE` allows it."""
LEAST = 450_000
SQUARE = 700
"""Limit on placed clusters for each pair of clusters of a tiny graph."""
FASTER = 20
TOGETHER = 24
"""Factors on the steps of chains, which place a cluster faster than lists do: `FASTER` for one chain, `TOGETHER` for
several in parallel."""
LARGE = 1_500
"""Limit on the clusters of a graph; towards it, the number of steps falls to 0."""
REFINED = 10_000
"""Limit on the clusters of a graph whose schedules `refine` refines."""
REFINE = 25_000
"""Steps to refine a schedule of a graph with too few steps for first lists."""
LISTS = (
    (1.0, 0.0, 0.0),
    *WEIGHTS,
    (0.5, 1.0, 1.0),
    (1.0, 0.25, 1.0),
    (0.5, 1.0, 0.3),
    (1.0, 1.0, 0.0),
)
"""Weights of the first lists, HEFT's first; some prefer fewer transfers."""
FIRST = 128
"""Steps for each cluster in the first lists together."""
HOTTEST = 0.1
"""Largest initial temperature, as a share of the makespan."""
GAIN = 0.4
"""Initial temperature as a share of the gap of the first schedule: near the bound, search nearby."""
SLOW = 5_000
"""Steps for each cluster above which cooling starts from that temperature; with fewer, from a lower one."""
ROOM = 7_000
"""Steps of lists for each cluster above which there are several chains."""
CHAINS = 16
"""Number of initial chains."""
STAGES = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
"""(share of the cooling, number of chains relative to the initial number) of each stage."""
QUARTER = 4
"""One of this many chains continues from stage to stage."""
AGREED = 8
"""Number of chains with the same makespan at which the search ends."""
SEED = 3_000
"""Random seed of the first chain; the others count up."""
COOLING = 1 / 30
"""Final temperature as a share of the initial one."""


def anneal(instance: Instance, bound: float, steps: int = STEPS, until: float = math.inf) -> list[Schedule]:
    """Anneal the best list schedules; return the best schedules found, the shortest first.

    Starts from the best list schedule, or from the `CHAINS` best if there are enough steps. Places about
    `FASTER` (`TOGETHER`) × `steps` clusters, fewer for a small or large graph or if `until` of the monotonic
    clock comes first. The chains know devices, queues and buses, but no memory caps, dispatch, or orders of
    transfers other than FIFO; the simulator decides. Returns nothing if the first lists alone would use half
    of the steps, or without the native search. Deterministic.
    """
    clusters = instance.clusters
    most = max(min(LEAST, SQUARE * clusters * clusters), EACH * clusters)
    steps = int(min(steps, most) * max(0.0, 1 - clusters / LARGE))
    if _settled(instance) or steps < 2 * FIRST * clusters or not searches():
        return []
    starts = _first(instance)
    if not starts:
        return []
    return _annealed(starts, bound, steps - FIRST * clusters, until, KEEP)


def refine(
    instance: Instance, bound: float, simulation: Simulation, steps: int, until: float
) -> list[Schedule]:
    """Refine a simulated schedule by annealing, if `anneal` has too few steps for a graph. Returns nothing
    after `until`, for more than `REFINED` clusters, where memory is short, or without the native search."""
    large = instance.clusters > REFINED or instance.tight
    if large or _settled(instance) or time.monotonic() > until or not searches():
        return []
    start = non_delay(simulation)
    if start.makespan == math.inf:
        return []
    return _annealed([start], bound, min(steps, REFINE), until, keep=1)


def _settled(instance: Instance) -> bool:
    """Return True if there is nothing to choose."""
    return instance.clusters < 2 or sum(instance.widths) < 2


def _first(instance: Instance) -> list[Listed]:
    """Return the first lists, each in its own order and non-delay: the shortest of each placement, the
    shortest first."""
    lists, tail = [], np.array(cost_to_go(instance))
    for rank, ahead, stay in LISTS:
        device, start = placed(instance, urgent_first(instance, rank), (ahead * tail).tolist(), stay)
        lists += [evaluate(instance, device, start, eager=eager) for eager in (False, True)]
    placements: dict[tuple[int, ...], Listed] = {}
    for listed in sorted(lists, key=lambda listed: listed.makespan):
        if listed.makespan < math.inf:
            placements.setdefault(tuple(listed.device), listed)
    return [*placements.values()]


def _annealed(starts: list[Listed], bound: float, steps: float, until: float, keep: int) -> list[Schedule]:
    """Return the schedules of the shortest lists after about `steps` steps, the shortest first."""
    clusters = starts[0].instance.clusters
    above = starts[0].makespan / bound - 1 if bound > 0 else math.inf
    several = steps / clusters >= ROOM
    steps *= TOGETHER if several else FASTER
    hot = min(HOTTEST, GAIN * above) * min(1.0, steps / clusters / SLOW) ** 2
    best = go_with_the_winners(starts, bound, steps, hot, until, keep, CHAINS if several else 1)
    return [listed.schedule(POLICY) for listed in best]


def go_with_the_winners(
    starts: Sequence[Listed],
    bound: float,
    steps: float,
    hot: float,
    until: float,
    keep: int,
    count: int,
) -> list[Listed]:
    """Anneal `count` parallel chains by "go with the winners"; return the `keep` shortest lists, each placement once,
    the shortest first.

    About `steps` steps in all; `hot`: initial temperature as a share of the makespan. Since a chain's basin shows
    long before it is cold, the best continue (Aldous and Vazirani, "Go with the winners algorithms", FOCS 1994):
    after each of `STAGES` one in `QUARTER`, and others restart from their shortest schedules. Ends at `until` of
    the monotonic clock, at the bound, or when `AGREED` chains agree.
    """
    pace = steps / sum(share * max(1, count // among) for share, among in STAGES)
    begun: list[Annealing] = []
    chains: list[Annealing] = []
    cooled = 0.0
    for share, among in STAGES:
        chains = sorted(chains, key=lambda chain: chain.rank)
        if len(chains) >= AGREED and chains[AGREED - 1].makespan <= chains[0].makespan * (1 + CLOSE):
            break
        chains = chains[: max(1, count // QUARTER)]
        best = [chain.best[0] for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            start = best[i % len(best)]
            chains.append(Annealing(start, bound, SEED + len(begun)))
            begun.append(chains[-1])
        heats = hot * COOLING**cooled, hot * COOLING ** (cooled + share)
        cooled += share
        chains = _cooled(chains, pace * share, heats, until)
        if _at_bound(chains[-1]):
            begun = chains
            break
    distinct = {(listed.makespan, *listed.device): listed for chain in begun for listed in chain.best}
    best = sorted(distinct.values(), key=lambda listed: (listed.over, listed.makespan))[:keep]
    return [evaluate(listed.instance, listed.device, listed.keys, eager=listed.eager) for listed in best]


def _cooled(
    chains: list[Annealing], steps: float, heats: tuple[float, float], until: float
) -> list[Annealing]:
    """Run each chain for this many steps; return the chains up to the first at the bound. Later ones may have
    run or not, depending on the number of cores."""

    def cool(at: int) -> None:
        if not any(map(_at_bound, chains[: at + 1])):
            chains[at].cool(steps, heats, until)

    numbers = range(len(chains))
    # Chains release the GIL; `list` raises their errors here.
    with ThreadPoolExecutor(min(len(chains), cores())) as pool:
        list(pool.map(cool, numbers))
    return chains[: next((at for at in numbers if _at_bound(chains[at])), numbers[-1]) + 1]


def _at_bound(chain: Annealing) -> bool:
    return chain.makespan <= chain.bound * (1 + CLOSE)


PACKED_EACH = 7_000
"""Limit on placed clusters for each cluster of a graph; chains take `TOGETHER` times as many."""
FEWEST = 512
"""Least number of placed clusters for each cluster for which it is worth starting."""


def pack(race: Race, steps: int) -> None:
    """Enter the best schedules that fit, found by chains from the entries of `race` that fit, or from those with the
    least excess if none does.

    About `steps` clusters are placed, fewer for a small graph. Skipped without the native search, and for a graph so
    large that only a few placements could be tried. Deterministic.
    """
    instance = race.instance
    clusters, steps = instance.clusters, min(steps, PACKED_EACH * instance.clusters)
    if len(instance.devices) < 2 or steps < FEWEST * clusters or not searches():
        return
    fitting = [entry for entry in race.entries if not entry.over]
    starts = sorted(fitting or race.entries, key=lambda entry: (entry.excess, entry.makespan))
    if not starts:
        return
    above = starts[0].makespan / race.bound - 1 if race.bound > 0 else math.inf
    hot = min(HOTTEST, GAIN * above)
    with capped(instance):
        lists = sorted(
            (non_delay(entry.simulation) for entry in starts), key=lambda start: (start.over, start.makespan)
        )
        best = go_with_the_winners(lists, race.bound, steps * TOGETHER, hot, race.until, KEEP, CHAINS)
    for listed in best:
        entry = race.trial(listed.schedule("packed"))
        if entry and not entry.over:
            race.admit(entry)
