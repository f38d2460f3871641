"""Where runs go by prices alone: a second of a device or a wire costs more, the more is laid on it already.

Aspnes, Azar, Fiat, Plotkin and Waarts, "On-line routing of virtual circuits with applications to load balancing and
machine scheduling", Journal of the ACM 44(3), 1997.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..model.instance import Instance

FULL = 4
"""Power of a wire's load, as a share of that of the devices, to which its price rises."""
FIRST = 100
"""Clusters of usual length that devices are taken to have at first, for no wire to count as full for its first copy."""


def priced(instance: Instance, worth: Sequence[float], steep: float, toll: float) -> list[int]:
    """The device of each cluster, in graph order each where it costs least.

    A second on a device is `worth` so much, and exp(`steep` * n) times that where it is n runs of usual length ahead
    of the least loaded. A copy costs `toll` times its seconds at the least, and infinitely much where no way leads.
    Linear in runs and reads times devices.
    """
    lanes = [len(names) for names in instance.lane_names]
    least_of = (min(worth[d] * row[d] for d in own) for own, row in zip(instance.allowed, instance.seconds))
    usual = sum(least_of) / max(1, instance.clusters) or 1.0
    rise = steep / usual
    load, price = [0.0] * len(lanes), worth
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
                        tolls[hop.lane] = toll + (carried[hop.lane] / max(least, FIRST * usual)) ** FULL
        for v in instance.makes[r]:
            source[v], there[v] = d, {d}
        if group >= 0:
            chosen[group] = d
        load[d] += seconds[d] / lanes[d]
        least = min(load)
        price = [own * math.exp(min(50.0, rise * (at - least))) for own, at in zip(worth, load)]
    return device


def last_first(instance: Instance, device: Sequence[int]) -> list[float]:
    """Seconds from the start of each cluster to the end of the graph, negative, where all are placed and wires are
    never busy: the least is the most urgent."""
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
