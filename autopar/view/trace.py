"""A timeline as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

One process for each device and one thread for each lane; a prediction beside a measurement has processes
of its own, next to those it predicts. Spans of a thread are strictly nested: what only overlaps gets a
second track.
"""

from __future__ import annotations

import bisect
import gzip
import json
from typing import Any

from ..ir.timeline import Span, Timeline

Event = dict[str, Any]
_LANES = {"in": "copy in", "out": "copy out"}


def trace_bytes(timeline: Timeline, *, compress: bool) -> bytes:
    """The trace as JSON, gzipped without a clock time in it when `compress`, so that equal timelines are
    equal bytes."""
    text = json.dumps(trace(timeline), ensure_ascii=False, separators=(",", ":")) + "\n"
    data = text.encode()
    return gzip.compress(data, 9, mtime=0) if compress else data


def trace(timeline: Timeline) -> dict[str, Any]:
    """The trace as JSON data: times in microseconds with nanoseconds behind the point."""
    events: list[Event] = []
    if timeline.predicted:
        _side(events, timeline, "measured", 0)
        _side(events, timeline.predicted, "predicted", 1)
    else:
        _side(events, timeline, "", 0)
    other = {"title": timeline.title, "producer": "autopar"}
    if timeline.label:
        other["label"] = timeline.label
    return {
        "displayTimeUnit": "ms",
        "distributedInfo": {"rank": 0},
        "otherData": other,
        "traceEvents": events,
    }


def _side(events: list[Event], timeline: Timeline, side: str, offset: int) -> None:
    devices = tuple(dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes))
    pid = {device: 2 * index + 1 + offset for index, device in enumerate(devices)}
    label = f" [{timeline.label}]" if timeline.label else ""
    by_lane: dict[str, list[Span]] = {lane: [] for lane in timeline.lanes}
    for span in timeline.spans:
        by_lane[span.lane].append(span)
    for device in devices:
        name = " ".join(filter(None, (device, side))) + label
        events.append(_meta("process_name", pid[device], {"name": name}))
        events.append(_meta("process_sort_index", pid[device], {"sort_index": pid[device]}))
    at: dict[int, tuple[int, int]] = {}
    for position, lane in enumerate(timeline.lanes):
        device, queue = lane.rsplit("/", 1)
        for track, spans in enumerate(_tracks(by_lane[lane])):
            tid = position * 16 + track + 1
            kind = "compute" if queue.isdigit() else "copy"
            name = _LANES.get(queue, f"{kind} {queue}") + (f" ({track + 1})" if track else "")
            events.append(_meta("thread_name", pid[device], {"name": name}, tid))
            events.append(_meta("thread_sort_index", pid[device], {"sort_index": tid}, tid))
            for start, end, span in spans:
                at[id(span)] = (tid, start)
                events.append(_slice(span, pid[device], tid, start, end))
    _flows(events, timeline, pid, at, offset)
    for memory in timeline.memory:
        for when, count in memory.steps:
            args = {"bytes": count}
            events.append(
                {"ph": "C", "name": "memory", "pid": pid[memory.device], "ts": _ns(when) / 1000, "args": args}
            )


def _slice(span: Span, pid: int, tid: int, start: int, end: int) -> Event:
    args: dict[str, Any] = {}
    for name in ("run", "module", "source", "src", "dst", "bytes"):
        if getattr(span, name):
            args[name] = getattr(span, name)
    if span.called and span.called != span.name:
        args["name"] = span.name
    if span.ready is not None:
        args["queued_us"] = round(max(0.0, span.start - span.ready) * 1e6, 3)
    return {
        "ph": "X",
        "name": span.title,
        "cat": span.kind,
        "pid": pid,
        "tid": tid,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": args,
    }


def _tracks(spans: list[Span]) -> list[list[tuple[int, int, Span]]]:
    """The spans of a lane on as few tracks as keep each strictly nested; a task that outlasts its run is
    clipped to it."""
    tracks: list[list[tuple[int, int, Span]]] = [[]]
    stacks: list[list[tuple[int, str]]] = [[]]
    ordered = sorted(spans, key=lambda span: (_ns(span.start), -_ns(span.end), bool(span.run)))
    for span in ordered:
        start, end = _ns(span.start), max(_ns(span.start), _ns(span.end))
        for track, stack in zip(tracks, stacks):
            while stack and stack[-1][0] <= start and not (stack[-1][0] == end and stack[-1][1] == span.run):
                stack.pop()
            if stack and span.run and stack[-1][1] == span.run:
                end = min(end, stack[-1][0])
            if not stack or end <= stack[-1][0]:
                track.append((start, end, span))
                stack.append((end, "" if span.run else span.name))
                break
        else:
            tracks.append([(start, end, span)])
            stacks.append([(end, "" if span.run else span.name)])
    return tracks


def _flows(
    events: list[Event], timeline: Timeline, pid: dict[str, int], at: dict[int, tuple[int, int]], offset: int
) -> None:
    """Arrows from the work that made a value to its copy, and from the copy to the first work after it
    arrived."""
    work: dict[str, list[Span]] = {}
    for span in timeline.spans:
        if span.kind == "compute" and not span.run:
            work.setdefault(span.device, []).append(span)
    ended = {device: sorted(spans, key=lambda span: span.end) for device, spans in work.items()}
    ends = {device: [_ns(span.end) for span in spans] for device, spans in ended.items()}
    begun = {device: sorted(spans, key=lambda span: span.start) for device, spans in work.items()}
    begins = {device: [_ns(span.start) for span in spans] for device, spans in begun.items()}
    number = offset
    for span in timeline.spans:
        if span.kind != "copy":
            continue
        ready = span.start if span.ready is None else span.ready
        before = bisect.bisect_right(ends.get(span.src, []), _ns(ready)) - 1
        if before >= 0:
            number += 2
            _flow(events, span.title, number, ended[span.src][before], span, pid, at)
        after = bisect.bisect_left(begins.get(span.dst, []), _ns(span.end))
        if after < len(begun.get(span.dst, [])):
            number += 2
            _flow(events, span.title, number, span, begun[span.dst][after], pid, at)


def _flow(
    events: list[Event],
    name: str,
    number: int,
    source: Span,
    target: Span,
    pid: dict[str, int],
    at: dict[int, tuple[int, int]],
) -> None:
    tid, start = at[id(source)]
    leave = max(start, _ns(source.end) - 1)
    common: Event = {"name": name, "cat": "transfer", "id": number}
    events.append({"ph": "s", **common, "pid": pid[source.device], "tid": tid, "ts": leave / 1000})
    tid, start = at[id(target)]
    events.append({"ph": "f", "bp": "e", **common, "pid": pid[target.device], "tid": tid, "ts": start / 1000})


def _meta(name: str, pid: int, args: Event, tid: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
