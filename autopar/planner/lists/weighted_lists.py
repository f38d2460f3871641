"""Several placements of graphs that are too large to search: what there is time for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from ...errors import PlanError
from ..bounds import worth
from ..candidates import SHORTER
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..native import searches
from .greedy import last_first, priced
from .heft import heft, list_schedule, placed
from .ranking import cost_to_go, mean_first

LARGE = 500
"""Runs from which on these are tried."""
WEIGHTS = (
    (0.5, 0.0, 0.1),
    (0.0, 0.25, 0.0),
    (0.5, 0.5, 0.3),
    (1.0, 0.0, 0.0),
    (1.0, 1.0, 0.1),
    (0.5, 0.25, 0.0),
    (0.5, 0.5, 0.0),
    (1.0, 0.5, 0.3),
    (0.0, 1.0, 0.0),
)
"""Weights of copies in the rank, of what follows in where a cluster goes, and of the copies it needs there: of all from
0 to 1, those that together did best on random graphs, the best first, and among them HEFT's own."""
LONG = (((0.5, 0.1, 0.0), (0.25, 0.6, 0.5)), ((0.1, 0.3),))
FULL = (((0.25, 0.8, 16.0),), ((0.01, 0.05), (0.1, 0.3)))
"""Where wires serve first come, first served, for graphs whose longest way is long, and for those that fill all
devices. First weights for lists: of what follows, of copies, and of what the seconds on a device are worth. Then what
`priced` is told: how steep prices are, and what a copy costs at the least."""
FILLED = 2.0
"""Longest ways in the load of a graph that fills all devices."""
MANY = 20_000
"""Runs from which on only the first of each are tried."""
POLISHED = 10_000
"""Runs up to which what is found is polished: chains go on from it (`anneal.polish`)."""
DEVICES = 16
"""Devices looked at for each cluster in all variants together."""
APART = 40
"""The same where copies never wait for each other, which makes a list schedule quick and where it goes matter more."""

Way: TypeAlias = Callable[[], tuple[list[int], list[float]]]
"""The device of each cluster, and how early it is to start there beside others."""


def variants(instance: Instance) -> dict[str, Callable[..., Schedule]]:
    """Functions `(problem, room=1.0) -> Schedule` by policy, as many as there is time for: fewer on more devices."""
    found = {} if crowded(instance) else _lists(instance)
    if plain(instance) and (not found or worth(instance)[1] > FILLED):
        for policy, way in _ways(instance).items():
            found[policy] = partial(_busy, policy=policy, way=way)
    return found


def plain(instance: Instance) -> bool:
    """True if there is nothing that non-delay lists leave out: copy queues of their own, a host that dispatches,
    several lanes for one cluster."""
    return not instance.costed.machine.queued and not instance.modes


def crowded(instance: Instance) -> bool:
    """The same, where copies wait for wires besides."""
    return bool(instance.copy_lanes) and plain(instance)


def polished(instance: Instance) -> bool:
    """True if chains can go on from what is found here: not where memory is short, runs take several lanes, or there is
    no native search."""
    return instance.clusters <= POLISHED and not instance.tight and not instance.modes and searches()


def _lists(instance: Instance) -> dict[str, Callable[..., Schedule]]:
    looks = DEVICES if instance.copy_lanes or instance.wires else APART
    found: dict[str, Callable[..., Schedule]] = {"heft": heft}
    to_go = cost_to_go(instance)
    for rank, ahead, stay in WEIGHTS[: max(1, round(looks / len(instance.devices)))]:
        policy = f"heft, weights {rank:g} {ahead:g} {stay:g}"
        order = mean_first(instance, rank)
        own = partial(list_schedule, policy=policy, order=order, to_go=to_go if ahead else None)
        found[policy] = partial(own, ahead=ahead, stay=stay)
    return found


def quickest(instance: Instance, until: float, room: float = 1.0) -> Schedule:
    """The shortest of all variants where wires serve first come, first served; after `until` of the monotonic clock no
    other is tried. Caps are not kept, whatever `room` there is."""
    best, least = None, math.inf
    for policy, way in _ways(instance).items():
        try:
            schedule, makespan = _dispatched(instance, policy, way)
        except PlanError:
            continue
        if makespan < least * (1 - SHORTER):
            best, least = schedule, makespan
        if time.monotonic() > until:
            break
    return best or heft(instance)


def _busy(instance: Instance, room: float = 1.0, *, policy: str, way: Way) -> Schedule:
    try:
        return _dispatched(instance, policy, way)[0]
    except PlanError:
        # It has led to where no link leads on.
        return heft(instance)


def _dispatched(instance: Instance, policy: str, way: Way) -> tuple[Schedule, float]:
    play = Play.nondelay(instance, *way())
    return play.schedule(policy), play.makespan


def _ways(instance: Instance) -> dict[str, Way]:
    price, filled = worth(instance)
    order, tail = mean_first(instance, 0.0), np.array(cost_to_go(instance))
    seconds = np.array(instance.seconds)
    spent = np.where(np.isfinite(seconds), seconds, 0.0) * price
    lists, prices = ([*own] for own in (FULL if filled > FILLED else LONG))
    if instance.clusters >= MANY:
        del lists[1:], prices[1:]
    elif filled > FILLED and polished(instance):
        # That comes out as well from prices alone, which are quicker.
        lists.clear()
    found: dict[str, Way] = {}
    for ahead, stay, full in lists:
        to_go = (ahead * tail + full * spent).tolist()
        name = f"heft, weights {ahead:g} {stay:g} {full:g}, lanes kept busy"
        found[name] = partial(placed, instance, order, to_go, stay)

    def by_price(steep: float, toll: float) -> tuple[list[int], list[float]]:
        device = priced(instance, price, steep, toll)
        return device, last_first(instance, device)

    for steep, toll in prices:
        found[f"prices, steep {steep:g}, toll {toll:g}, lanes kept busy"] = partial(by_price, steep, toll)
    return found
