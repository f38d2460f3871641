"""Schedules in which clusters are computed on several devices, by where and when: the copies they need alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...ir.costed import CostedGraph
from ..candidates import Entry, Race
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from .duplicates import again, once

POLICY = "search with copies"
"""What made the schedules that have copies."""


@dataclass(frozen=True)
class Place:
    """When a cluster is computed on a device, in seconds, and on which lanes; `copy` if it is computed elsewhere too,
    from where it goes to devices without a copy."""

    start: float
    end: float
    lanes: tuple[str, ...]
    copy: bool


Places: TypeAlias = dict[tuple[str, str], Place]
"""By cluster and device."""


def places(play: Play) -> Places:
    """Where and when a simulation computes each cluster."""
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
