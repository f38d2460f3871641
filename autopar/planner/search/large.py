"""Placements for graphs that are too large to search: list schedules under several weights, and by prices
alone, where the price of a device or bus rises with its load.

Aspnes, Azar, Fiat, Plotkin and Waarts, "On-line routing of virtual circuits with applications to load balancing and
machine scheduling", Journal of the ACM 44(3), 1997.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ..bounds import device_prices
from ..candidates import SHORTER
from ..lists.heft import cost_to_go, heft, list_schedule, mean_first, placed
from ..model.instance import Instance
from ..model.simulator import Schedule
from ..native import searches
from . import Listed, evaluate

LARGE = 500
"""Least number of clusters of a graph for which these are tried."""
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
"""Weights of transfers in the rank, and of the remaining path and of transfers in the choice of a device: the
best combinations, from 0 to 1, on random graphs, best first, HEFT's own among them."""
LONG = (((0.5, 0.1, 0.0), (0.25, 0.6, 0.5)), ((0.1, 0.3),))
FULL = (((0.25, 0.8, 16.0),), ((0.01, 0.05), (0.1, 0.3)))
"""Parameters with FIFO buses, for graphs with a long critical path and for those that fill all devices. First
the weights of lists: remaining path, transfers, price of seconds on a device. Then the parameters of
`priced`: steepness of prices, and least cost of a transfer."""
FILLED = 2.0
"""Ratio of load to critical path above which a graph fills all devices."""
MANY = 20_000
"""Number of clusters above which only the first of each is tried."""
POLISHED = 10_000
"""Limit on the clusters of a graph whose schedules are refined by chains (`anneal.polish`)."""
DEVICES = 16
"""Limit on devices considered for each cluster in all variants together."""
APART = 40
"""Limit on devices considered for each cluster if transfers never wait for each other: list schedules are
then fast, and placement matters more."""
FULLEST = 4
"""Exponent of the price of a bus in its load relative to the devices."""
FIRST = 100
"""Initial load of devices, in typical clusters, so that no bus counts as full with its first transfer."""


def variants(instance: Instance) -> dict[str, Callable[..., Schedule]]:
    """Return functions `(problem, room=1.0) -> Schedule` by policy, as many as there is time for: fewer for more
    devices."""
    found = {} if contended(instance) else _lists(instance)
    if plain(instance) and (not found or device_prices(instance)[1] > FILLED):
        for policy, make in _non_delay(instance).items():
            found[policy] = partial(quickest, until=math.inf, lists={policy: make})
    return found


def plain(instance: Instance) -> bool:
    """Return True if non-delay lists cover the problem: no copy queues, dispatch, or clusters with several lanes."""
    return not instance.costed.machine.queued and not instance.modes


def contended(instance: Instance) -> bool:
    """Return True if the problem is `plain` and its transfers wait for buses."""
    return bool(instance.copy_lanes) and plain(instance)


def polished(instance: Instance) -> bool:
    """Return True if chains can refine these placements: enough memory, no clusters with several lanes, and a native
    search."""
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


def quickest(
    instance: Instance,
    until: float,
    room: float = 1.0,
    lists: Mapping[str, Callable[[], Listed]] | None = None,
) -> Schedule:
    """Return the shortest of all variants with FIFO buses, or of `lists`; after `until` of the monotonic clock
    no other is tried. Caps, and `room`, are ignored."""
    best: Listed | None = None
    name = ""
    for policy, make in (_non_delay(instance) if lists is None else lists).items():
        listed = make()
        if listed.makespan < (best.makespan * (1 - SHORTER) if best else math.inf):
            best, name = listed, policy
        if time.monotonic() > until:
            break
    # In every list, some value may have no route.
    return best.schedule(name) if best else heft(instance)


def _non_delay(instance: Instance) -> dict[str, Callable[[], Listed]]:
    """Return functions that make non-delay lists, in which no lane idles while a cluster of its device is ready (Baker,
    "Introduction to Sequencing and Scheduling", Wiley, 1974); none without the native search, which times them."""
    if not searches():
        return {}
    price, filled = device_prices(instance)
    order, tail = mean_first(instance, 0.0), np.array(cost_to_go(instance))
    seconds = np.array(instance.seconds)
    spent = np.where(np.isfinite(seconds), seconds, 0.0) * price
    lists, prices = ([*own] for own in (FULL if filled > FILLED else LONG))
    if instance.clusters >= MANY:
        del lists[1:], prices[1:]
    elif filled > FILLED and polished(instance):
        # Prices alone do as well here, and are quicker.
        lists.clear()

    def by_finish(to_go: list[list[float]], stay: float) -> Listed:
        return evaluate(instance, *placed(instance, order, to_go, stay), eager=True)

    def by_price(steep: float, toll: float) -> Listed:
        device = priced(instance, price, steep, toll)
        return evaluate(instance, device, last_first(instance, device), eager=True)

    found: dict[str, Callable[[], Listed]] = {}
    for ahead, stay, full in lists:
        name = f"heft, weights {ahead:g} {stay:g} {full:g}, lanes kept busy"
        found[name] = partial(by_finish, (ahead * tail + full * spent).tolist(), stay)
    for steep, toll in prices:
        found[f"prices, steep {steep:g}, toll {toll:g}, lanes kept busy"] = partial(by_price, steep, toll)
    return found


def priced(instance: Instance, base: Sequence[float], steep: float, toll: float) -> list[int]:
    """Place each cluster, in graph order, on the cheapest device; return the devices.

    A second on a device costs `base`, times exp(`steep` × n) if it is n clusters of typical length ahead of the least
    loaded. A transfer costs at least `toll` times its seconds, and infinitely much without a route. Linear in
    clusters and reads times devices.
    """
    least_of = (min(base[d] * row[d] for d in own) for own, row in zip(instance.allowed, instance.seconds))
    usual = sum(least_of) / max(1, instance.clusters) or 1.0
    rise = steep / usual
    load, price = [0.0] * len(instance.widths), base
    carried, tolls = [0.0] * len(instance.copy_lanes), [toll] * (len(instance.copy_lanes) + 1)
    device = [-1] * instance.clusters
    chosen = [-1] * len(instance.members)
    source = list(instance.home)
    there: list[set[int]] = [{home} for home in instance.home]
    for r, (allowed, seconds) in enumerate(zip(instance.allowed, instance.seconds)):
        group = instance.group[r]
        if group >= 0 and chosen[group] >= 0:
            allowed = (chosen[group],)
        cost = [price[d] * seconds[d] for d in allowed]
        for v in instance.reads[r]:
            nbytes, known, route = instance.bytes[v], there[v], instance.route[source[v]]
            for at, d in enumerate(allowed):
                if d not in known:
                    hops = route[d]
                    if hops is None:
                        cost[at] = math.inf
                        continue
                    for hop in hops:
                        if hop.dst not in known:
                            cost[at] += tolls[hop.lane] * (hop.latency_s + nbytes * hop.s_per_byte)
        d = device[r] = allowed[cost.index(min(cost))]
        least = min(load)
        for v in instance.reads[r]:
            for hop in instance.route[source[v]][d] or () if d not in there[v] else ():
                if hop.dst not in there[v]:
                    there[v].add(hop.dst)
                    if hop.lane >= 0:
                        carried[hop.lane] += hop.latency_s + instance.bytes[v] * hop.s_per_byte
                        tolls[hop.lane] = toll + (carried[hop.lane] / max(least, FIRST * usual)) ** FULLEST
        for v in instance.makes[r]:
            source[v], there[v] = d, {d}
        if group >= 0:
            chosen[group] = d
        load[d] += seconds[d] / instance.widths[d]
        least = min(load)
        price = [own * math.exp(min(50.0, rise * (at - least))) for own, at in zip(base, load)]
    return device


def last_first(instance: Instance, device: Sequence[int]) -> list[float]:
    """Return the negated upward rank of each cluster on its device, in seconds, with idle buses: the least is
    the most urgent."""
    rank = [0.0] * instance.clusters
    for r in reversed(range(instance.clusters)):
        own, longest = device[r], 0.0
        latency, s_per_byte = instance.latency[own], instance.s_per_byte[own]
        for later in instance.after[r]:
            if rank[later] > longest:
                longest = rank[later]
        for v in instance.makes[r]:
            for later in instance.readers[v]:
                d = device[later]
                if d != own:
                    rest = rank[later] + latency[d] + instance.bytes[v] * s_per_byte[d]
                    if rest > longest:
                        longest = rest
        rank[r] = longest + instance.seconds[r][own]
    return [-own for own in rank]
