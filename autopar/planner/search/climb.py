"""Hill climbing on one schedule in the full simulation, with memory, copy queues, host and clusters on
several lanes: first until it fits, then for length."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..candidates import SHORTER, Entry, Race
from ..lists.heft import list_schedule
from ..model.simulator import Play

TRIES, SHORT = 500, 100
"""Limits on the schedules tried from each of `STARTS` if nothing fits, and from the best one that fits."""
STARTS = 3
STEPS = 20_000
"""Limit on the clusters placed from a schedule that fits."""
FEWEST = 20
"""Least number of schedules for which it is worth starting."""
NEAR = 0.01
"""Gap to the bound, as a share, at which the climb ends."""
MOVED = 0.7
"""Probability that a move changes a device instead of the order."""
URGENT = 0.8
"""Probability that a move affects a cluster on the critical path, or on a device that is too full."""


def climb(race: Race, steps: int) -> bool:
    """Enter the result of hill climbing from the best schedule or, if nothing fits, from those with the least excess;
    return True if that entered a schedule, which then fits.

    Each move changes one cluster or colocate group. About `steps` clusters are placed at most. Deterministic.
    """
    instance, leader = race.instance, race.leading()
    if not leader or not instance.clusters or sum(instance.widths) < 2:
        return False
    if leader.over:
        starts = sorted(race.entries, key=lambda entry: entry.excess)[:STARTS]
        tries = min(TRIES, steps // (STARTS * 30 * instance.clusters))
    else:
        starts, tries = [leader], min(SHORT, STEPS // instance.clusters)
    if tries < FEWEST:
        return False
    draw = random.Random(0)
    for start in starts:
        found = _climbed(race, draw, start, tries)
        if found is not start and not found.over:
            race.admit(found)
            return True
    return False


def _climbed(race: Race, draw: random.Random, start: Entry, tries: int) -> Entry:
    """Climb for this many moves, each kept unless it increases excess memory or length."""
    instance, current, first = race.instance, start, bool(start.over)
    place, keys = [*start.play.device], _places(start.play)
    seen = set()
    for _ in range(tries):
        short = not current.over and (first or current.makespan <= race.bound * (1 + NEAR))
        if short or race.late:
            break
        device, changed = [*place], [*keys]
        urgent = draw.random() < URGENT
        r = _one(draw, _urgent(race, current) if urgent else range(instance.clusters))
        if draw.random() < MOVED:
            d = _one(draw, instance.allowed[r])
            for member in instance.together(r):
                device[member] = d
        else:
            low = max((keys[p] for p in instance.before[r]), default=-1.0)
            high = min((keys[later] for later in instance.after[r]), default=float(instance.clusters))
            changed[r] = low + (high - low) * draw.random()
        order = sorted(range(instance.clusters), key=changed.__getitem__)
        if (key := (*device, *order)) in seen:
            continue
        seen.add(key)
        entry = race.trial(list_schedule(instance, "local search", order, allowed=[(d,) for d in device]))
        if entry and (entry.excess, entry.makespan) <= (current.excess, current.makespan):
            place, keys = device, changed
            if (entry.excess, entry.makespan) < (current.excess, current.makespan * (1 - SHORTER)):
                current = entry
    return current


def _places(play: Play) -> list[float]:
    """Return the position of each cluster in the order of starts."""
    keys = [0.0] * play.instance.clusters
    for at, r in enumerate(sorted(range(play.instance.clusters), key=play.when)):
        keys[r] = float(at)
    return keys


def _urgent(race: Race, entry: Entry) -> Sequence[int]:
    """Return the clusters of devices that are too full, or else of the critical path."""
    if not entry.over:
        return critical(entry.play) or range(race.instance.clusters)
    full = {race.instance.costed.index[device] for device, _, _ in entry.over}
    return [r for r, d in enumerate(entry.play.device) if d in full] or range(race.instance.clusters)


def _one(draw: random.Random, of: Sequence[int]) -> int:
    return of[int(draw.random() * len(of))]


def critical(play: Play) -> list[int]:
    """Return, last first, the clusters of an unbroken chain of steps that ends the plan."""
    steps = sorted(range(len(play.end)), key=lambda step: (play.end[step], play.start[step], step))
    ends: dict[float, list[int]] = {}
    for position, step in enumerate(steps):
        ends.setdefault(play.end[step], []).append(position)
    found: list[int] = []
    position = len(steps) - 1
    while position >= 0:
        step = steps[position]
        if step < play.instance.clusters:
            found.append(step)
        position = next((p for p in reversed(ends.get(play.start[step], ())) if p < position), -1)
    return found
