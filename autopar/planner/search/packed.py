"""Search among placements that fit, by annealing chains that respect the caps or reduce the excess."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from ..candidates import Race
from ..lists.heft import list_schedule
from ..lists.ranking import urgent_first
from ..model.instance import Instance
from ..model.toposort import late
from ..native import searches
from .anneal import CHAINS, GAIN, HOTTEST, TOGETHER, winners
from .core import KEEP, Timed, capped

EACH = 7_000
"""Limit on placed clusters for each cluster of a graph; chains take `TOGETHER` times as many."""
FEWEST = 512
"""Least number of placed clusters for each cluster for which it is worth starting."""
ROOMS = (1.0, 0.75, 0.5)
"""Shares of the caps that state fills at first, which leaves room for other values."""


def pack(race: Race, steps: int) -> None:
    """Enter the best schedules among those that fit, by chains from the entries of `race` and from `stretches`; if
    none fits, from those with the least excess.

    About `steps` clusters are placed, fewer for a small graph. Skipped for a graph so large that only a few placements
    could be tried, and for clusters with several lanes; without the native search only `stretches` are tried.
    Deterministic.
    """
    instance = race.instance
    clusters, steps = instance.clusters, min(steps, EACH * instance.clusters)
    if instance.modes or len(instance.devices) < 2 or steps < FEWEST * clusters:
        return
    for placement in stretches(instance):
        allowed = [(d,) for d in placement]
        entry = race.trial(list_schedule(instance, "packed", urgent_first(instance), allowed=allowed))
        if entry and not entry.over:
            race.admit(entry)
    fitting = [entry for entry in race.entries if not entry.over]
    starts = sorted(fitting or race.entries, key=lambda entry: (entry.excess, entry.makespan))
    if not starts or not searches():
        return
    above = starts[0].makespan / race.bound - 1 if race.bound > 0 else math.inf
    hot = min(HOTTEST, GAIN * above)
    with capped(instance):
        lists = [
            Timed(instance, entry.play.device, entry.play.start[:clusters], eager=True) for entry in starts
        ]
        lists.sort(key=lambda timed: (timed.over, timed.makespan))
        found = winners(instance, lists, race.bound, steps * TOGETHER, hot, race.until, KEEP, CHAINS)
    for timed in found:
        entry = race.trial(timed.schedule("packed"))
        if entry and not entry.over:
            race.admit(entry)


def stretches(instance: Instance) -> Iterator[list[int]]:
    """Yield placements that fill one device after the other with state, along a depth-first order of the graph from
    its start or end; the rest goes to the device with most room."""
    room = [
        math.inf if limit is None else limit - sum(given.values())
        for limit, given in zip(instance.caps, instance.given)
    ]
    last = room.index(max(room))
    for reverse, share, step in product((False, True), ROOMS, (1, -1)):
        order = late(instance.before, reverse)[::step]
        found = _filled(instance, order, [share * own for own in room], last)
        if all(d in instance.allowed[r] for r, d in enumerate(found)):
            yield found


def _filled(instance: Instance, order: Sequence[int], room: Sequence[float], last: int) -> list[int]:
    device = [-1] * instance.clusters
    d, held = 0, dict[str, int]()
    for r in order:
        if device[r] >= 0:
            continue
        members = instance.together(r)
        more = held | dict(kept for m in members for kept in instance.kept[m])
        able = all(d in instance.allowed[m] for m in members for d in range(len(room)) if d != last)
        while able and d < len(room) and (d == last or sum(more.values()) > room[d]):
            d, held = d + 1, {}
            more = dict(kept for m in members for kept in instance.kept[m])
        if able and d < len(room):
            held = more
        for m in members:
            device[m] = d if able and d < len(room) else last
    return device
