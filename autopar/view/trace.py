"""A timeline as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

Each device (or each rank, if there are several) is a process, and each lane a thread. A prediction has its
own processes next to those it predicts. Spans of a thread are strictly nested; others get a second track.
"""

from __future__ import annotations

import gzip
import json
from typing import Any, TypeAlias

from ..ir.timeline import Span, Timeline

Event: TypeAlias = dict[str, Any]
_LANES = {"in": "copy in", "out": "copy out"}


def trace_bytes(timeline: Timeline, *, compress: bool) -> bytes:
    """Return the trace as JSON, gzipped without a time stamp if `compress`, so that equal timelines give equal
    bytes."""
    text = json.dumps(trace(timeline), ensure_ascii=False, separators=(",", ":")) + "\n"
    data = text.encode()
    return gzip.compress(data, 9, mtime=0) if compress else data


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as JSON data: times in microseconds, with nanoseconds as decimals."""
    events: list[Event] = []
    _side(events, timeline, "measured" if timeline.predicted else "", 0)
    if timeline.predicted:
        _side(events, timeline.predicted, "predicted", 1)
    other = {"title": timeline.title, "producer": "autopar"}
    if timeline.label:
        other["label"] = timeline.label
    return {
        "displayTimeUnit": "ms",
        "distributedInfo": {"rank": 0, "world_size": timeline.ranks},
        "otherData": other,
        "traceEvents": events,
    }


def _side(events: list[Event], timeline: Timeline, side: str, offset: int) -> None:
    # One process for each device, or for each rank of several, whose name is the first part of a lane's name.
    rows = dict.fromkeys(lane.partition("/")[0] for lane in timeline.lanes)
    pids = {row: 2 * index + 1 + offset for index, row in enumerate(rows)}
    label = f" [{timeline.label}]" if timeline.label else ""
    by_lane: dict[str, list[Span]] = {lane: [] for lane in timeline.lanes}
    for span in timeline.spans:
        by_lane[span.lane].append(span)
    for row, pid in pids.items():
        events += _named("process", " ".join(filter(None, (row, side))) + label, pid)
    for position, lane in enumerate(timeline.lanes):
        device, queue = lane.rsplit("/", 1)
        row, _, rest = device.partition("/")
        for track, spans in enumerate(_tracks(by_lane[lane])):
            tid = position * 16 + track + 1
            kind = "compute" if queue.isdigit() else "copy"
            name = _LANES.get(queue, f"{kind} {queue}") + (f" ({track + 1})" if track else "")
            events += _named("thread", " ".join(filter(None, (rest, name))), pids[row], tid)
            for start, end, span in spans:
                events.append(_slice(span, pids[row], tid, start, end))
    for memory in timeline.memory:
        row, _, rest = memory.device.partition("/")
        common = {"ph": "C", "name": " ".join(filter(None, ("memory", rest))), "pid": pids[row]}
        events += [
            {**common, "ts": _ns(when) / 1000, "args": {"bytes": count}} for when, count in memory.steps
        ]


def _named(what: str, name: str, pid: int, tid: int = 0) -> list[Event]:
    """Return the name of a process or thread, and its position."""
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {**common, "name": f"{what}_name", "args": {"name": name}},
        {**common, "name": f"{what}_sort_index", "args": {"sort_index": tid or pid}},
    ]


def _slice(span: Span, pid: int, tid: int, start: int, end: int) -> Event:
    known = ("cluster", "module", "source", "src", "dst", "bytes")
    args = {name: getattr(span, name) for name in known if getattr(span, name)}
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
    """Return the spans of a lane on the fewest tracks with strict nesting; a task that outlasts its cluster is
    clipped."""
    tracks: list[list[tuple[int, int, Span]]] = [[]]
    stacks: list[list[tuple[int, str]]] = [[]]
    ordered = sorted(spans, key=lambda span: (_ns(span.start), -_ns(span.end), bool(span.cluster)))
    for span in ordered:
        start, end = _ns(span.start), max(_ns(span.start), _ns(span.end))
        for track, stack in zip(tracks, stacks):
            while (
                stack and stack[-1][0] <= start and not (stack[-1][0] == end and stack[-1][1] == span.cluster)
            ):
                stack.pop()
            if stack and span.cluster and stack[-1][1] == span.cluster:
                end = min(end, stack[-1][0])
            if not stack or end <= stack[-1][0]:
                track.append((start, end, span))
                stack.append((end, "" if span.cluster else span.name))
                break
        else:
            tracks.append([(start, end, span)])
            stacks.append([(end, "" if span.cluster else span.name)])
    return tracks


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
