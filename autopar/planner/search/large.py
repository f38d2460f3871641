"""Placements for graphs that are too large to search: list schedules under several weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ..candidates import SHORTER
from ..lists.heft import cost_to_go, heft, list_schedule, placed, urgent_first
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
    (1.0, 1.0, 0.1),
    (0.5, 0.25, 0.0),
    (0.5, 0.5, 0.0),
    (1.0, 0.5, 0.3),
    (0.0, 1.0, 0.0),
)
"""Weights of transfers in the rank, and of the remaining path and of transfers in the choice of a device: the
best combinations, from 0 to 1, on random graphs, best first."""
NON_DELAY = ((0.25, 0.8, 16.0), (0.5, 0.1, 0.0), (0.25, 0.6, 0.5))
"""Weights of the remaining path, of transfers and of a cluster's own seconds in lists timed with FIFO buses. The first
is for graphs that fill all devices, where each cluster should be on the device that computes it fastest."""
MANY = 20_000
"""Number of clusters above which only the first of each is tried."""
DEVICES = 16
"""Limit on devices considered for each cluster in all variants together."""
APART = 40
"""Limit on devices considered for each cluster if transfers never wait for each other: list schedules are
then fast, and placement matters more."""


def weighted(instance: Instance) -> dict[str, Callable[..., Schedule]]:
    """Return HEFT and lists under several weights, as functions `(instance, room=1.0) -> Schedule` by policy: fewer for
    more devices."""
    looks = DEVICES if instance.copy_lanes or instance.wires else APART
    policies: dict[str, Callable[..., Schedule]] = {"heft": heft}
    tail = np.array(cost_to_go(instance))
    for rank, ahead, stay in WEIGHTS[: max(1, round(looks / len(instance.devices)))]:
        policy = f"heft, weights {rank:g} {ahead:g} {stay:g}"
        order, to_go = urgent_first(instance, rank), (ahead * tail).tolist() if ahead else None
        policies[policy] = partial(list_schedule, policy=policy, order=order, to_go=to_go, stay=stay)
    return policies


def contended(instance: Instance) -> bool:
    """Return True if transfers wait for buses alone: there are no copy queues and no dispatch."""
    return bool(instance.copy_lanes) and not instance.costed.machine.queued


def non_delay_list(instance: Instance, until: float) -> Schedule:
    """Return the shortest of some lists with FIFO buses in which no lane idles while a cluster of its device is ready
    (Baker, "Introduction to Sequencing and Scheduling", Wiley, 1974).

    After `until` of the monotonic clock no other is tried. Caps are ignored. HEFT without the native search, which
    times the lists.
    """
    best: Listed | None = None
    policy = ""
    if searches():
        order, tail = urgent_first(instance, 0.0), np.array(cost_to_go(instance))
        seconds = np.array(instance.seconds)
        spent = np.where(np.isfinite(seconds), seconds, 0.0)
        for ahead, stay, speed in NON_DELAY[:1] if instance.clusters >= MANY else NON_DELAY:
            to_go = (ahead * tail + speed * spent).tolist()
            listed = evaluate(instance, *placed(instance, order, to_go, stay), eager=True)
            if listed.makespan < (best.makespan * (1 - SHORTER) if best else math.inf):
                best, policy = listed, f"heft, weights {ahead:g} {stay:g} {speed:g}, lanes kept busy"
            if time.monotonic() > until:
                break
    # In every list, some value may have no route.
    return best.schedule(policy) if best else heft(instance)
