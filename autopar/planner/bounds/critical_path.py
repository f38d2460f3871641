"""Critical-path bound: heads and tails of clusters on each device, without contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from ..model.instance import Instance
from ..model.toposort import inverse

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Paths:
    """The longest paths of a graph: head and tail of each cluster r on device d, in seconds.

    head[r, d]: least time before it can start.
    tail[r, d]: least time from its end to the end of the schedule.
    seconds[r, d]: its own time; inf if it cannot run there.
    length: the longest path through the graph.
    """

    head: Floats
    tail: Floats
    seconds: Floats
    length: float


def paths(instance: Instance) -> Paths:
    """Compute heads and tails with transfers, each cluster on its best device.

    The optimistic tables of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014), in both directions. O(E D²) for E
    reads.
    """
    seconds = durations(instance)
    head, delivered = _heads(instance, seconds)
    if not instance.clusters:
        return Paths(seconds, seconds, seconds, delivered)
    tail = _tails(instance, seconds)
    with_all = (head + seconds + tail).min(axis=1)
    return Paths(head, tail, seconds, max(delivered, float(with_all.max())))


def tails(instance: Instance) -> Floats:
    """Return the `tail` of `paths`."""
    return _tails(instance, durations(instance))


def durations(instance: Instance) -> Floats:
    """Return the seconds of each cluster on each device (R, D); inf where its colocate group cannot run."""
    seconds = np.array(instance.seconds, dtype=float).reshape(instance.clusters, len(instance.devices))
    for members in instance.members:
        for r in members:
            for d in {*range(seconds.shape[1])} - {*instance.allowed[r]}:
                seconds[r, d] = np.inf
    return seconds


def nearest(instance: Instance) -> tuple[Floats, Floats]:
    """Return the least latency and the least seconds per byte between all devices by any route, relays included:
    (D, D) each."""
    devices = len(instance.devices)
    latency = np.array(instance.latency, dtype=float).reshape(devices, devices)
    s_per_byte = np.array(instance.s_per_byte, dtype=float).reshape(devices, devices)
    s_per_byte[np.isinf(latency)] = np.inf
    for table in (latency, s_per_byte):
        np.fill_diagonal(table, 0.0)
        for middle in range(devices):
            np.minimum(table, table[:, middle, None] + table[middle], out=table)
    # Without a route only the latency is infinite: 0 bytes times infinity would be NaN.
    s_per_byte[np.isinf(latency)] = 0.0
    return latency, s_per_byte


def _cross(times: Floats, nbytes: Floats, latency: Floats, s_per_byte: Floats) -> Floats:
    """Return the least seconds (n, D) of values on each device, from those on all devices and the ways between."""
    best = times.copy()
    for e in range(len(latency)):
        np.minimum(best, times[:, e, None] + (latency[e] + nbytes[:, None] * s_per_byte[e]), out=best)
    return best


def _heads(instance: Instance, seconds: Floats) -> tuple[Floats, float]:
    """Return the earliest start of each cluster on each device (R, D), inf if it cannot run, and the earliest end with
    all deliveries, in seconds."""
    clusters, values = instance.clusters, len(instance.values)
    nbytes = np.array([*instance.bytes, 0], dtype=float)
    latency, s_per_byte = nearest(instance)
    # The last row stands for clusters that read nothing or wait for nothing.
    arrival = np.zeros((values + 1, len(latency)))
    for v, home in enumerate(instance.home):
        # Resident state may be on any device without a transfer.
        if home >= 0 and instance.values[v] not in instance.holders:
            arrival[v] = latency[home] + instance.bytes[v] * s_per_byte[home]
    head = np.zeros((clusters, len(latency)))
    first_end = np.zeros(clusters + 1)
    order, bounds = levels(instance.before)
    reads, read_at = ragged([instance.reads[r] for r in order], values)
    before, before_at = ragged([instance.sooner[r] for r in order], clusters)
    makes, make_at = ragged([instance.makes[r] for r in order], values)
    waiting = any(instance.sooner)
    sorted_seconds = seconds[order]
    numbers = np.array(order)
    for first, last in pairwise(bounds):
        start = _largest(arrival, reads, read_at, first, last)
        if waiting:
            np.maximum(start, _largest(first_end, before, before_at, first, last)[:, None], out=start)
        rows = numbers[first:last]
        head[rows] = start
        ends = start + sorted_seconds[first:last]
        first_end[rows] = ends.min(axis=1)
        outputs = makes[make_at[first] : make_at[last]]
        counts = make_at[first + 1 : last + 1] - make_at[first:last]
        ready = ends if len(outputs) == len(ends) else np.repeat(ends, counts, 0)
        arrival[outputs] = _cross(ready, nbytes[outputs], latency, s_per_byte)
        arrival[values] = 0.0
    wanted = [(v, d) for v, devices in enumerate(instance.deliver) for d in devices]
    delivered = max((float(arrival[v, d]) for v, d in wanted), default=0.0)
    head[seconds == np.inf] = np.inf
    return head, max(delivered, float(first_end.max()))


def _tails(instance: Instance, seconds: Floats) -> Floats:
    """Return the least time from the end of each cluster on each device to the end of the schedule."""
    clusters, values = instance.clusters, len(instance.values)
    nbytes = np.array([*instance.bytes, 0], dtype=float)
    latency, s_per_byte = nearest(instance)
    tail = np.zeros((clusters, len(latency)))
    rest = np.zeros((clusters + 1, len(latency)))
    shortest = np.zeros(clusters + 1)
    order, bounds = levels(instance.after)
    makes, readers = instance.makes, instance.readers
    read, read_at = ragged([[v for v in makes[r] for _ in readers[v]] for r in order], values)
    by, _ = ragged([[later for v in makes[r] for later in readers[v]] for r in order], clusters)
    waits = inverse(instance.sooner)
    after, after_at = ragged([waits[r] for r in order], clusters)
    waiting = any(waits)
    delivered = {r for v, devices in enumerate(instance.deliver) if devices and (r := instance.maker[v]) >= 0}
    sorted_seconds = seconds[order]
    numbers = np.array(order)
    for first, last in pairwise(bounds):
        rows = numbers[first:last]
        span = slice(read_at[first], read_at[last])
        onward = _cross(rest[by[span]], nbytes[read[span]], latency.T, s_per_byte.T)
        follow = onward
        if len(onward) > last - first:
            follow = np.maximum.reduceat(onward, read_at[first:last] - read_at[first], axis=0)
        if waiting:
            np.maximum(follow, _largest(shortest, after, after_at, first, last)[:, None], out=follow)
        for at, r in enumerate(order[first:last]) if delivered else ():
            if r in delivered:
                for v in instance.makes[r]:
                    for target in instance.deliver[v]:
                        trip = latency[:, target] + instance.bytes[v] * s_per_byte[:, target]
                        follow[at] = np.maximum(follow[at], trip)
        tail[rows] = follow
        follow = follow + sorted_seconds[first:last]
        rest[rows] = follow
        shortest[rows] = follow.min(axis=1)
    tail[seconds == np.inf] = np.inf
    return tail


def _largest(table: Floats, entries: Ints, at: Ints, first: int, last: int) -> Floats:
    """Return the row maxima of a table over the lists `first` to `last` of entries."""
    rows = table[entries[at[first] : at[last]]]
    if len(rows) == last - first:
        return rows
    return np.maximum.reduceat(rows, at[first:last] - at[first], axis=0)


def levels(before: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return clusters sorted by depth, and the index at which each depth begins.

    `before` lists only smaller numbers or, like `after`, only larger ones.
    """
    depth = [0] * len(before)
    backward = any(p > r for r, earlier in enumerate(before) for p in earlier)
    for r in reversed(range(len(before))) if backward else range(len(before)):
        for p in before[r]:
            if depth[p] >= depth[r]:
                depth[r] = depth[p] + 1
    order = sorted(range(len(before)), key=depth.__getitem__)
    counts = np.bincount(np.array(depth, dtype=np.int64)) if depth else np.zeros(0, dtype=np.int64)
    return order, [0, *np.cumsum(counts).tolist()]


def ragged(rows: Sequence[Sequence[int]], filler: int) -> tuple[Ints, Ints]:
    """Concatenate rows, an empty row as `filler`; return the entries and the start of each row, with the end."""
    entries = np.array([entry for row in rows for entry in row or (filler,)], dtype=np.int64)
    return entries, np.array([0, *accumulate(len(row) or 1 for row in rows)], dtype=np.int64)
