"""Statistics shared by pictures and the report: utilization, overlap, and phases of a training step."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import TypeAlias

from ...ir.display_names import PHASES
from ...ir.graph import Graph
from ...ir.plan import Plan
from ...ir.timeline import Span, Timeline

Interval: TypeAlias = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that touch; return them sorted."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Return the total seconds of intervals."""
    return sum(end - start for start, end in intervals)


def shared(one: list[Interval], other: list[Interval]) -> float:
    """Return the seconds in both of two merged lists."""
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
    """Return the outermost spans of each lane by start: clusters and copies, without the tasks in them."""
    by_lane: dict[str, list[Span]] = {lane: [] for lane in timeline.lanes}
    for span in sorted(timeline.spans, key=lambda span: (span.start, span.end)):
        if not span.cluster:
            by_lane[span.lane].append(span)
    return {lane: tuple(spans) for lane, spans in by_lane.items()}


def _busy(timeline: Timeline) -> dict[str, list[Interval]]:
    """Return the busy intervals of each lane."""
    tops = top_spans(timeline).items()
    return {lane: union((s.start, s.end) for s in spans if s.end > s.start) for lane, spans in tops}


def busy_shares(timeline: Timeline) -> dict[str, float]:
    """Return each lane's busy share of the makespan."""
    return {lane: length(busy) / (timeline.makespan or 1.0) for lane, busy in _busy(timeline).items()}


def device_busy(timeline: Timeline) -> dict[str, float]:
    """Return the share of the makespan in which each device computes, over its used compute lanes."""
    shares: dict[str, list[float]] = {}
    for lane, share in busy_shares(timeline).items():
        device, queue = lane.rsplit("/", 1)
        if queue.isdigit():
            shares.setdefault(device, []).append(share)
    return {device: sum(values) / (sum(map(bool, values)) or 1) for device, values in shares.items()}


def overlaps(timeline: Timeline) -> dict[str, float | None]:
    """Return the share of each lane's busy time during which another lane computes; None for a lane that is never
    busy."""
    busy = _busy(timeline)
    compute = [lane for lane in timeline.lanes if lane.rsplit("/", 1)[1].isdigit()]
    shares: dict[str, float | None] = {}
    for lane, here in busy.items():
        others = union(interval for other in compute if other != lane for interval in busy[other])
        shares[lane] = shared(here, others) / length(here) if here else None
    return shares


def level_at(steps: tuple[tuple[float, int], ...], when: float) -> int:
    """Return the bytes in use at a time, from the steps of a memory curve."""
    position = bisect.bisect_right(steps, when, key=lambda step: step[0]) - 1
    return steps[position][1] if position >= 0 else 0


def phases(plan: Plan, timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Return two times of each phase that takes any, in order, for a plan with a backward: seconds in which any of its
    clusters or copies is active, and those of them in which no earlier phase is."""
    result: dict[str, tuple[float, float]] = {}
    before: list[Interval] = []
    for name, intervals in _phase_intervals(plan, timeline).items() if plan.words.training else ():
        if intervals:
            merged = union(intervals)
            result[name] = length(merged), length(merged) - shared(merged, before)
            before = union((*before, *merged))
    return result


def hidden(plan: Plan, timeline: Timeline) -> float:
    """Return the share of the reduction's time in which some device works on the backward; 1.0 without a reduction.

    `timeline`: `plan.timeline()`, or a measured one of the plan. Linear in spans except for sorting.
    """
    reduction = union(_phase_intervals(plan, timeline)["reduction"])
    backward = union(_phase_intervals(plan, timeline, copies=False)["backward"])
    return shared(reduction, backward) / length(reduction) if reduction else 1.0


def _phase_intervals(plan: Plan, timeline: Timeline, *, copies: bool = True) -> dict[str, list[Interval]]:
    """Return the start and end of each activity by phase."""
    graph, cluster = plan.costed.graph, plan.costed.cluster
    of_task, of_value = plan.words.phase_of_task, plan.words.phase_of_value
    by_phase: dict[str, list[Interval]] = {name: [] for name in PHASES}
    # Use measured tasks if there are any: the two halves of a step have other clusters than the whole step.
    fine = any(span.cluster for span in timeline.spans)
    for span in timeline.spans:
        name, phase = span.name, None
        if span.kind == "copy":
            phase = of_value.get(name) if copies else None
        elif fine:
            phase = of_task.get(name) if span.cluster and not _free(graph, name) else None
        elif name in cluster and not all(_free(graph, task) for task in cluster[name].tasks):
            phase = plan.words.phase(name)
        if phase and span.end > span.start:
            by_phase[phase].append((span.start, span.end))
    return by_phase


def _free(graph: Graph, name: str) -> bool:
    return name in graph.task and graph.task[name].free
