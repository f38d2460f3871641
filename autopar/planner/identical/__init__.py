"""Schedules on lanes that are all alike, where nothing that moves takes time: P | prec | Cmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bounds.ancestors import LARGEST
from ..candidates import Race
from ..model.instance import Instance
from ..model.orders import in_order
from ..model.simulator import Schedule
from .chains import Chains
from .lists import Way, reduced

LARGE = 6_000
"""Runs above which a graph gets list schedules alone."""
JUSTIFIED = 2
"""Times that a list schedule is justified at most, before the chains begin."""
LISTED = 300_000
"""Clusters placed in these, at most."""
CLOSE = 1e-9
"""Share above the lower bound at which the search ends."""


def identical(race: Race) -> Schedule:
    """The shortest schedule found of a race for a problem whose lanes are alike; the search ends at the bound.
    O((R + E) log R) for R runs and E edges, and `STEPS` where list schedules do not reach it."""
    instance, lanes = race.instance, race.instance.alike
    seconds = [row[lanes[0][0]] for row in instance.seconds]
    before = reduced(instance.before) if instance.clusters <= LARGE else instance.before
    forth = Way(seconds, before, len(lanes))
    back = Way(seconds, forth.after, len(lanes), back=True)
    enough, left = race.bound * (1 + CLOSE), LISTED
    best: list[float] = []
    first = []
    for keys in _rules(forth, back):
        ends = forth.listed(keys)
        for justified in range(JUSTIFIED + 1):
            if justified:
                ends = forth.listed(_last_first(back.listed(_last_first(ends))))
            if not best or max(ends) < max(best):
                best = ends
            left -= 2 * instance.clusters
            if max(best) <= enough or left < 0 or race.late:
                return _schedule(instance, forth, lanes, best)
        first.append(ends)
    if instance.clusters <= LARGE:
        best = Chains(forth, back, enough).search(best, first, race.until)
    return _schedule(instance, forth, lanes, best)


def _rules(forth: Way, back: Way) -> Iterator[list[float]]:
    """Keys of the first lists: by what follows each cluster, and by a schedule made from the end; then both again, with
    what shares the lanes."""
    for crowds in (False, True) if len(forth.seconds) <= LARGEST else (False,):
        yield _last_first(forth.levels(crowds))
        yield _last_first(back.listed(_last_first(back.levels(crowds))))


def _last_first(times: Sequence[float]) -> list[float]:
    return [-seconds for seconds in times]


def _schedule(instance: Instance, way: Way, lanes: Sequence[tuple[int, int]], ends: list[float]) -> Schedule:
    """Each cluster on the lane that has been free for the shortest time."""
    # A start may, after rounding, seem to be before the end of what it waits for.
    starts = (
        max(end - own, *(ends[p] for p in earlier), 0.0)
        for end, own, earlier in zip(ends, way.seconds, way.before)
    )
    free = [0.0] * len(lanes)
    placed = []
    for start, end, r in sorted(zip(starts, ends, range(instance.clusters))):
        able = [since for since in free if since <= start * (1 + CLOSE)] or [min(free)]
        which = free.index(max(able))
        free[which] = end
        placed.append((r, lanes[which][0], (lanes[which][1],)))
    return in_order(instance, "search", placed, ())
