"""The timeline as SVG: each lane predicted above and measured below on one time scale, memory under them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...ir.device import kind_of
from ...ir.timeline import Memory, Timeline
from ...system.text import percent, percent_free, seconds, size
from ..drawing import design
from ..drawing.design import GRID, INK, PAPER, QUIET, Shade, shades
from ..drawing.free_space import Point
from ..drawing.svg import MARGIN, SAMPLE, Figure, Sample, Svg, heading, trace
from ..report.reasons import change
from ..report.statistics import (
    busy_shares,
    device_busy,
    length,
    overlaps,
    shared,
    top_spans,
    union,
)
from .bars import LEFT, WIDTH, Chart, measured_bars, pale, planned_bars, solid

_NAMES = {"0": "compute", "in": "copy in", "out": "copy out"}
_MEMORY_HIGH, _CURVE = 136.0, 100.0
_TOP = 52.0
"""Pixels from the legend to the lanes, for the labels of the axis."""


def timeline_svg(timeline: Timeline, width: float = WIDTH, theme: str = "light") -> str:
    """Return the picture of a timeline as SVG text, with its prediction above it if there is one."""
    return timeline_picture(timeline, width).themed(theme)


def timeline_picture(timeline: Timeline, width: float = WIDTH) -> Chart:
    """Return the picture of a timeline as shapes."""
    chart = Chart(timeline, width)
    what = "predicted above measured" if timeline.predicted else "timeline"
    top = [span for span in timeline.spans if not span.cluster]
    under = f"{len(top)} clusters and copies in {len({span.lane for span in top})} lanes."
    if timeline.late >= 0.005:
        under += f" Emulated work ended up to {percent(timeline.late)} late."
    title = f"{timeline.title}: {what}"
    high = heading(chart, title, under, timeline.label, _figures(timeline), _samples(chart, timeline))
    with chart.group(transform=f"translate(0 {high:.0f})"):
        bottom = _memories(chart, timeline, _lanes(chart, timeline))
        chart.text(LEFT - 22, _TOP - 8, chart.unit, 12, QUIET, anchor="end")
        for when, text in chart.ticks:
            chart.text(chart.x(when), _TOP - 8, text, 12, QUIET, anchor="middle")
            chart.text(chart.x(when), bottom + 18, text, 12, QUIET, anchor="middle")
        _ends(chart, timeline, bottom)
        notes = "autopar · busy: share of the whole call · "
        notes += "overlap: share of the lane's busy time during which another lane computes"
        chart.text(MARGIN, bottom + 48, notes, 12, QUIET)
    chart.height = high + bottom + 70
    return chart


def _figures(timeline: Timeline) -> list[Figure]:
    predicted = timeline.predicted
    figures = [(seconds(timeline.makespan), "measured" if predicted else "whole call")]
    if predicted:
        figures.insert(0, (seconds(predicted.makespan), "predicted"))
        if predicted.makespan:
            error = timeline.makespan / predicted.makespan - 1
            figures.append((change(error), "measured over predicted"))
    busy = [share for device, share in device_busy(timeline).items() if not kind_of(device).host]
    if busy:
        figures.append((percent(sum(busy) / len(busy)), "accelerators busy, mean"))
    top = [span for span in timeline.spans if not span.cluster and span.end > span.start]
    copies = union((span.start, span.end) for span in top if span.kind == "copy")
    work = union((span.start, span.end) for span in top if span.kind == "compute")
    if copies:
        share = percent(shared(copies, work) / length(copies))
        figures.append((share, "of copy time under compute"))
    waits = sum(max(0.0, span.start - span.ready) for span in timeline.spans if span.ready is not None)
    return [*figures, (seconds(waits), "copies ready but queued")]


def _samples(svg: Svg, timeline: Timeline) -> list[Sample]:
    """Return the legend of what is in the picture."""
    looks = list(shades((("cpu", True), ("0", False), ("1", False))).values())

    def each(bar: Callable[..., None], x: float, y: float) -> None:
        for index, shade in enumerate(looks):
            bar(svg, shade, x + index * 12, y - 6, 10, 12)

    def phase(name: str) -> Sample:
        def draw(x: float, y: float) -> None:
            pale(svg, looks[1], x, y - 6, SAMPLE / 2 - 1, 12, name)
            solid(svg, looks[1], x + SAMPLE / 2, y - 6, SAMPLE / 2, 12, name)

        return "sum, update" if name == "update" else name, draw

    samples: list[Sample] = [("predicted", partial(each, pale))] if timeline.predicted else []
    samples += [
        ("measured" if timeline.predicted else "at work", partial(each, solid)),
        ("ready, waits for a busy bus", lambda x, y: svg.rect(x, y - 6, SAMPLE, 12, "wait box")),
        ("on the plan's critical path", lambda x, y: svg.rect(x, y - 2, SAMPLE, 4, fill=INK)),
    ]
    if any(span.phase not in ("", "forward") for span in timeline.spans):
        samples += map(phase, ("forward", "backward", "update"))
    return samples


def _lanes(chart: Chart, timeline: Timeline) -> float:
    """Draw the lanes of each device, with busy and overlapped shares on the right; return their end in pixels."""
    predicted = timeline.predicted
    real, planned = top_spans(timeline), top_spans(predicted) if predicted else {}
    busy, overlap = busy_shares(timeline), overlaps(timeline)
    plan = predicted or timeline
    hot = {(plan.spans[number].lane, plan.spans[number].name) for number in plan.path}
    chart.text(chart.right + 22, _TOP - 8, "busy", 12, bold=True)
    chart.text(chart.right + 110, _TOP - 8, "overlap", 12, bold=True)
    y = _TOP + 10
    for device, shade in chart.shades.items():
        if y > _TOP + 10:
            chart.line((MARGIN, y - 7), (chart.width - MARGIN, y - 7), "grid")
        lanes = [lane for lane in timeline.lanes if lane.rsplit("/", 1)[0] == device]
        lanes = [lane for lane in lanes if real[lane] or planned.get(lane)] or lanes[:1]
        for index, lane in enumerate(lanes):
            queue = lane.rsplit("/", 1)[1]
            copies = not queue.isdigit()
            above, below = (12.0 if copies else 18.0) if predicted else 0.0, 20.0 if copies else 30.0
            tall = above + below + (17 if predicted else 14)
            middle = y + tall / 2
            chart.lane(y, tall)
            name = _NAMES.get(queue, f"copy {queue}" if copies else f"compute {queue}")
            _name(chart, shade, "" if index else device, name, middle)
            planned_bars(chart, planned.get(lane, ()), shade, y + 5, above)
            measured_bars(chart, real[lane], shade, y + tall - below - 7, below, hot)
            _share(chart, chart.right + 22, middle, busy[lane], shade.hue)
            _share(chart, chart.right + 110, middle, overlap[lane], "#8792A3")
            y += tall + 8
        y += 6
    return y


def _name(svg: Svg, shade: Shade, device: str, lane: str, middle: float) -> None:
    """Draw the name of a lane at the left, below that of its device, if it has one."""
    if device:
        svg.swatch(shade, MARGIN, middle - 12, 24, 22)
        text = design.fit(device, LEFT - 12 - MARGIN - 32, 13, True)
        svg.text(MARGIN + 32, middle - 2, text, 13, bold=True)
    svg.text(LEFT - 12, middle + (14 if device else 4), lane, 12, QUIET, anchor="end")


def _share(svg: Svg, x: float, middle: float, share: float | None, color: str) -> None:
    if share is not None:
        svg.rect(x, middle - 5, 36, 10, rx=2, fill=GRID)
        svg.rect(x, middle - 5, 36 * min(1.0, share), 10, rx=2, fill=color)
        svg.text(x + 80, middle + 4, percent(share), 12, anchor="end")


def _ends(chart: Chart, timeline: Timeline, bottom: float) -> None:
    """Draw lines at the measured and predicted ends of the call; the earlier one has its label on the left."""
    sides = [(timeline.makespan, "measured" if timeline.predicted else "end")]
    sides += [(timeline.predicted.makespan, "predicted")] if timeline.predicted else []
    for when, what in sides:
        x = chart.x(when)
        chart.line((x, _TOP), (x, bottom), "end", stroke_dasharray="3 3" if what == "predicted" else None)
        left = len(sides) == 2 and (when, what) == min(sides)
        at, anchor = (x - 3, "end") if left else (x + 3, "start")
        chart.text(at, _TOP - 28, f"{what} {seconds(when)}", 11.5, bold=True, anchor=anchor)


def _memories(chart: Chart, timeline: Timeline, y: float) -> float:
    planned = {memory.device: memory for memory in timeline.predicted.memory} if timeline.predicted else {}
    for memory in timeline.memory:
        if memory.steps and memory.peak:
            _memory_row(chart, memory, planned.get(memory.device), y + 22, timeline.makespan)
            y += _MEMORY_HIGH
    return y + 6


def _memory_row(chart: Chart, memory: Memory, planned: Memory | None, y: float, end: float) -> None:
    """Draw the curve of `memory` from `y` down; the predicted one, `planned`, as a thin line over it."""
    shade, cap = chart.shades[memory.device], memory.cap
    close = cap if cap is not None and memory.peak >= 0.35 * cap else 0
    most = max(memory.peak, planned.peak if planned else 0, close) or 1
    bottom = y + _CURVE

    def level(count: float) -> float:
        return bottom - count / most * (_CURVE - 14)

    chart.lane(y, _CURVE)
    points = corners(memory, chart.x, level, min(chart.right, chart.x(end)))
    chart.path(trace([*points, (points[-1][0], bottom), (points[0][0], bottom)]) + "Z", fill=shade.fill)
    for (x1, y1), (x2, _) in zip(points[::2], points[1::2]):
        chart.pattern(shade, x1, y1, x2 - x1, bottom - y1, stroke_opacity=0.5)
    chart.path(trace(points), fill="none", stroke=shade.hue, stroke_width=2.2, stroke_linejoin="round")
    if planned and planned.steps:
        last = max(when for when, _ in planned.steps)
        chart.path(trace(corners(planned, chart.x, level, min(chart.right, chart.x(last)))), "planned")
    for share in (0.0, 0.5) if close else (0.0, 0.5, 1.0):
        text = size(most * share) if share else "0"
        chart.text(LEFT - 10, level(most * share) + 4, text, 11, QUIET, anchor="end")
    if close:
        at = level(close)
        chart.line((LEFT, at), (chart.right, at), "cap")
        chart.text(LEFT - 10, at + 4, f"cap {size(close)}", 11, INK, bold=True, anchor="end")
    chart.swatch(shade, MARGIN, y + 34, 22, 20)
    chart.text(MARGIN + 30, y + 43, design.fit(memory.device, 86, 12, True), 12, bold=True)
    chart.text(MARGIN + 30, y + 58, "memory", 11.5, QUIET)
    at_peak = chart.x(next(when for when, count in memory.steps if count == memory.peak))
    chart.circle(at_peak, level(memory.peak), 4.5, fill=PAPER, stroke=shade.hue, stroke_width=2)
    rows = [("peak", size(memory.peak)), ("cap", size(cap) if cap else "none")]
    rows += [("free", percent_free(1 - memory.peak / cap))] if cap else []
    rows += [("planned", size(planned.peak))] if planned else []
    for index, (what, text) in enumerate(rows):
        chart.text(chart.right + 22, y + 18 + index * 21, what, 12, QUIET)
        chart.text(chart.right + 110, y + 18 + index * 21, text, 12)
    chart.line((LEFT, bottom), (chart.right, bottom), "grid")


def corners(
    memory: Memory, x_of: Callable[[float], float], level: Callable[[float], float], right: float
) -> list[Point]:
    """Return both ends of each level of a step curve; of levels on one pixel, the highest and the last."""
    steps: list[tuple[float, int]] = []
    pixel = -1
    for when, count in memory.steps:
        x = x_of(when)
        if int(x) != pixel or len(steps) < 2:
            pixel = int(x)
            steps += [(x, count), (x, count)]
        else:
            high = max(steps[-2][1], count)
            steps[-2:] = [(steps[-2][0], high), (x, count)]
    points: list[Point] = []
    for index, (x, count) in enumerate(steps):
        until = steps[index + 1][0] if index + 1 < len(steps) else max(right, x)
        points += [(x, level(count)), (until, level(count))]
    return points
