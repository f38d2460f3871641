"""Plans that compute runs on several devices: which copies are worth what they take depends on where the rest is, and
where the rest had better be on the copies, so that both are searched for together."""

from __future__ import annotations

from contextlib import nullcontext

from ...ir.costed import repeatable
from ..candidates import SHORTER, Entry, Race
from ..model.instance import Instance
from ..native import searches
from ..search.anneal import CHAINS, TOGETHER
from ..search.core import COPIES, MOST, Timed, capped
from ..search.population import Effort, winners
from .prune import Place, Places, places, scheduled

EACH = 4_500
STEPS = 225_000
"""Steps of the search for each cluster, and in all at most; chains take `TOGETHER` times as many (`anneal`)."""
LARGEST = 2_000
"""Clusters and transfers of the largest plan for which this is done."""
HOT = 0.07
"""Share by which a plan may become longer at first."""
TRIED = 3
"""Plans with copies simulated, of those found."""


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
    """Where and when a list has its clusters and copies."""
    instance, clusters = timed.instance, timed.instance.clusters
    found = {}
    for i, r in (*enumerate(range(clusters)), *enumerate(timed.of, clusters + 1)):
        d = timed.device[i]
        lanes = (instance.lane_names[d][timed.lane[i]],)
        place = Place(timed.start[i], timed.end[i], lanes, copy=i > clusters)
        found[instance.names[r], instance.devices[d]] = place
    return found
