"""Figures that several pictures and the report show: busy shares, overlap, unions of time."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from itertools import pairwise

from ...ir.timeline import Span, Timeline

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals merged where they touch, sorted."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Seconds the intervals last together."""
    return sum(end - start for start, end in intervals)


def shared(one: list[Interval], other: list[Interval]) -> float:
    """Seconds that lie in both of two merged lists."""
    total, position = 0.0, 0
    for start, end in one:
        while position < len(other) and other[position][1] <= start:
            position += 1
        at = position
        while at < len(other) and other[at][0] < end:
            total += min(end, other[at][1]) - max(start, other[at][0])
            at += 1
    return total


def top_spans(timeline: Timeline) -> dict[str, tuple[Span, ...]]:
    """The outermost spans of each lane by start: runs and copies, not the tasks in them."""
    found: dict[str, list[Span]] = {lane: [] for lane in timeline.lanes}
    for span in timeline.spans:
        if not span.run:
            found[span.lane].append(span)
    return {
        lane: tuple(sorted(spans, key=lambda span: (span.start, span.end))) for lane, spans in found.items()
    }


def busy_shares(timeline: Timeline) -> dict[str, float]:
    """Share of the makespan in which each lane is at work."""
    if not timeline.makespan:
        return dict.fromkeys(timeline.lanes, 0.0)
    tops = top_spans(timeline)
    return {
        lane: length(union((span.start, span.end) for span in spans)) / timeline.makespan
        for lane, spans in tops.items()
    }


def device_busy(timeline: Timeline) -> dict[str, float]:
    """Share of the makespan in which each device computes, over its compute lanes that were used."""
    shares = busy_shares(timeline)
    found: dict[str, list[float]] = {}
    for lane in timeline.lanes:
        device, queue = lane.rsplit("/", 1)
        if queue.isdigit():
            found.setdefault(device, []).append(shares[lane])
    return {device: sum(values) / (sum(map(bool, values)) or 1) for device, values in found.items()}


def overlaps(timeline: Timeline) -> dict[str, float | None]:
    """Share of each lane's busy time during which another lane computes; None for a lane that never works."""
    tops = top_spans(timeline)
    busy = {lane: union((s.start, s.end) for s in spans if s.end > s.start) for lane, spans in tops.items()}
    compute = [lane for lane in timeline.lanes if lane.rsplit("/", 1)[1].isdigit()]
    everything = _levels(busy, compute)
    found: dict[str, float | None] = {}
    for lane in timeline.lanes:
        total = length(busy[lane])
        if not total:
            found[lane] = None
            continue
        others = _at_least(everything, 2 if lane in compute else 1)
        found[lane] = shared(busy[lane], others) / total
    return found


def _levels(busy: dict[str, list[Interval]], lanes: list[str]) -> list[tuple[float, int]]:
    """(time, how many of the lanes are at work from then on), by time."""
    changes: dict[float, int] = {}
    for lane in lanes:
        for start, end in busy[lane]:
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    level, found = 0, []
    for when in sorted(changes):
        level += changes[when]
        found.append((when, level))
    return found


def _at_least(levels: list[tuple[float, int]], count: int) -> list[Interval]:
    return union((when, after) for (when, level), (after, _) in pairwise(levels) if level >= count)


def level_at(steps: tuple[tuple[float, int], ...], when: float) -> int:
    """Bytes in use at a moment, from the steps of a memory curve."""
    position = bisect.bisect_right(steps, (when, 1 << 62)) - 1
    return steps[position][1] if position >= 0 else 0
