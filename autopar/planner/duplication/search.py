"""Plans that compute clusters on several devices: which copies are worth what they take depends on where the rest is,
and where the rest had better be on the copies, so that both are searched for together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from ...ir.costed import CostedGraph, repeatable
from ..candidates import SHORTER, Entry, Race
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..native import searches
from ..search.anneal import CHAINS, TOGETHER
from ..search.core import COPIES, MOST, Timed, capped
from ..search.population import Effort, winners
from .duplicates import again, once

EACH = 4_500
STEPS = 225_000
"""Steps of the search for each cluster, and in all at most; chains take `TOGETHER` times as many (`anneal`)."""
LARGEST = 2_000
"""Clusters and transfers of the largest plan for which this is done."""
HOT = 0.07
"""Share by which a plan may become longer at first."""
TRIED = 3
"""Plans with copies simulated, of those found."""
POLICY = "search with copies"
"""Policy of the schedules that have copies."""


@dataclass(frozen=True)
class Place:
    """Start and end of a cluster on a device, in seconds, and its lanes; `copy` if it is a duplicate of one that is
    computed elsewhere, from where the values go to devices without a copy."""

    start: float
    end: float
    lanes: tuple[str, ...]
    copy: bool


Places: TypeAlias = dict[tuple[str, str], Place]
"""By cluster and device."""


def repeated(race: Race, start: Entry) -> Entry:
    """A plan, or a shorter one with clusters computed again, searched for as far as there is time for it. What is
    returned has an `Instance` of its own where clusters are. Nothing is done for large plans, nor without the native
    search.

    Duplication heuristics: Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling", IEEE TPDS
    9(9), 1998.
    """
    ended = start.makespan <= race.bound * (1 + SHORTER) or race.late
    large = start.play.instance.clusters + len(start.play.moves) > LARGEST
    if ended or large or not _promising(race.instance) or not searches():
        return start
    return min([start, *_found(race, start)], key=lambda entry: entry.makespan)


def _promising(instance: Instance) -> bool:
    """True if there are lists of the graph (`anneal`), and a cluster in it that may be computed again and of which it
    takes time to move what it makes."""
    costed = instance.costed
    return not instance.modes and any(
        repeatable(costed, cluster)
        and any(
            instance.travel(v, s, d)
            for v in instance.makes[r]
            if instance.readers[v]
            for s in own
            for d in own
        )
        for r, (cluster, own) in enumerate(zip(costed.clusters, instance.able))
    )


def _found(race: Race, start: Entry) -> list[Entry]:
    """Plans that chains come to from one."""
    instance = race.instance
    effort = Effort(
        steps=min(STEPS, EACH * instance.clusters) * TOGETHER,
        chains=CHAINS,
        hot=HOT,
        copies=COPIES,
    )
    with capped(instance) if instance.tight else nullcontext():
        found = winners(instance, [listed(instance, start)], race.bound, effort, race.until, keep=TRIED)
    entries = [scheduled(instance, placed(timed)) for timed in found if timed.makespan < start.makespan]
    return [entry for entry in entries if entry and not entry.over]


def listed(instance: Instance, entry: Entry) -> Timed:
    """The list that leads to a plan, or to one like it."""
    index = {name: d for d, name in enumerate(instance.devices)}
    device, keys = [0] * instance.clusters, [0.0] * instance.clusters
    copies = []
    for (name, where), place in places(entry.play).items():
        r, d = instance.number[name], index[where]
        if place.copy:
            copies.append((r, d, place.start))
        else:
            device[r], keys[r] = d, place.start
    of = [r for r, _, _ in copies[:MOST]]
    if of:
        device += [-1, *(d for _, d, _ in copies[:MOST])]
        keys += [0.0, *(start for *_, start in copies[:MOST])]
    return Timed(instance, device, keys, eager=True, of=of)


def placed(timed: Timed) -> Places:
    """Start, end and lane of each cluster of a list and of its copies."""
    instance, clusters = timed.instance, timed.instance.clusters
    found = {}
    for i, r in (*enumerate(range(clusters)), *enumerate(timed.of, clusters + 1)):
        d = timed.device[i]
        lanes = (instance.lane_names[d][timed.lane[i]],)
        place = Place(timed.start[i], timed.end[i], lanes, copy=i > clusters)
        found[instance.names[r], instance.devices[d]] = place
    return found


def places(play: Play) -> Places:
    """Start, end and lanes of each cluster in a simulation."""
    instance = play.instance
    of = dict(instance.costed.again)
    found: Places = {}
    for r, name in enumerate(instance.names):
        lanes = (play.lane[r], *play.more.get(r, ()))
        place = Place(play.start[r], play.end[r], lanes, name in of)
        # A cluster comes before its copies: where it has come to one of them, that one goes.
        found.setdefault((of.get(name, name), instance.devices[play.device[r]]), place)
    return found


def scheduled(instance: Instance, at: Places) -> Entry | None:
    """The schedule that computes clusters in these places in this order, simulated; None when that never ends.

    `instance` is one of the graph, with whatever copies. Copies that nobody reads are left out, so that the entry has a
    `Instance` of its own. Linear in the graph but for sorting.
    """
    plain = once(instance.costed)
    where = {name: device for (name, device), place in at.items() if not place.copy}
    copies = _needed(plain, where, [key for key, place in at.items() if place.copy])
    costed = again(plain, where, copies, _stops(instance))
    called = {
        (original, costed.machine.devices[d].name): copy
        for copy, original in costed.again
        if copy in costed.cluster
        for d, seconds in enumerate(costed.cluster[copy].seconds)
        if seconds is not None
    }
    number = {cluster.name: i for i, cluster in enumerate(costed.clusters)}
    turns = [
        (place.start, place.end, number[called.get(key, key[0])], place.lanes)
        for key, place in at.items()
        if not place.copy or key in called
    ]
    lanes: dict[str, list[str]] = {lane: [] for own in instance.lane_names for lane in own}
    for _, _, i, own in sorted(turns):
        for lane in own:
            lanes[lane].append(costed.clusters[i].name)
    orders = {lane: tuple(names) for lane, names in lanes.items()}
    return Race(Instance(costed)).trial(Schedule(POLICY, orders))


def _needed(
    plain: CostedGraph, where: Mapping[str, str], copies: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Those of the copies, (cluster, device), whose result is read or delivered there, read by another copy perhaps."""
    reads = {
        cluster.name: {plain.producer[value] for value in cluster.reads if value in plain.producer}
        for cluster in plain.clusters
    }
    wanted = {(plain.producer[value], device) for value, device in plain.deliver if value in plain.producer}
    wanted |= {(name, device) for cluster, device in where.items() for name in reads[cluster]}
    left = {*copies}
    edge = [key for key in copies if key in wanted]
    found: dict[tuple[str, str], None] = {}
    while edge:
        key = edge.pop()
        if key not in found:
            found[key] = None
            edge += [(name, key[1]) for name in reads[key[0]] if (name, key[1]) in left]
    return [key for key in copies if key in found]


def _stops(instance: Instance) -> dict[tuple[str, str], str]:
    """The device between, for two devices that no link joins."""
    names = instance.devices
    return {
        (names[s], names[d]): names[hops[0].dst]
        for s, row in enumerate(instance.route)
        for d, hops in enumerate(row)
        if hops and len(hops) > 1
    }
