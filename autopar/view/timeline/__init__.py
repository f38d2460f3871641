"""The timeline as SVG: each lane predicted above and measured below on one time scale, memory under them."""

from __future__ import annotations

from ...ir.timeline import Memory, Timeline
from ...text.tables import percent, seconds
from ..drawing import fonts
from ..drawing.palette import GRID, INK, LANE, QUIET, WAIT, WAIT_FILL, shades
from ..drawing.svg import Svg
from ..placed.layout import MARGIN, WIDTH, tick_text, ticks
from ..placed.panels import figure, split_unit, strip, title
from ..report.facts import busy_shares, device_busy, length, overlaps, shared, top_spans, union
from ..report.names import change
from .lanes import LEFT, RIGHT, Axis, measured_bars, pale, planned_bars, solid
from .memory import MEMORY_HIGH, memory_row
from .spans import happened

_NAMES = {"in": "copy in", "out": "copy out"}


def timeline_svg(timeline: Timeline) -> str:
    """The picture of a timeline, with its prediction above it when it has one."""
    predicted = timeline.predicted
    ends = [timeline.makespan, *([predicted.makespan] if predicted else [])]
    ends += [span.end for side in (timeline, predicted) if side for span in side.spans]
    axis = Axis(max(ends, default=0.0) * 1.02)
    svg = Svg(WIDTH, 0, f"timeline of {timeline.title}")
    what = "predicted above measured" if predicted else "timeline"
    top = [span for span in timeline.spans if not span.run]
    # A run that takes several lanes has a span in each.
    count = len({(span.kind, span.name, span.device, span.start) for span in top})
    under = f"{count} runs and copies in {len({span.lane for span in top})} lanes."
    if timeline.late >= 0.005:
        under += f" Emulated work ended up to {percent(timeline.late)} late."
    title(svg, f"{timeline.title}: {what}", under, timeline.label)
    _figures(svg, timeline)
    _legend(svg, predicted is not None)
    if any(span.phase not in ("", "forward") for span in timeline.spans):
        _phases(svg)
    for side in (timeline, predicted):
        if side:
            axis.room.take_line((axis.x(side.makespan), 0.0), (axis.x(side.makespan), 10_000.0))
    bottom = _rows(svg, timeline, axis)
    bottom = _memories(svg, timeline, axis, bottom)
    _axis(svg, axis, bottom, 176.0)
    _ends(svg, timeline, axis, bottom)
    notes = "autopar · busy: share of the whole call · "
    notes += "overlap: share of the lane's busy time during which another lane computes"
    svg.text(MARGIN, bottom + 48, notes, 12, QUIET)
    svg.height = bottom + 70
    return str(svg)


def _figures(svg: Svg, timeline: Timeline) -> None:
    predicted = timeline.predicted
    strip(svg)
    x = MARGIN + 20
    first = predicted or timeline
    x = figure(svg, x, *split_unit(seconds(first.makespan)), "predicted" if predicted else "whole call")
    if predicted:
        x = figure(svg, x, *split_unit(seconds(timeline.makespan)), "measured")
        if predicted.makespan:
            error = timeline.makespan / predicted.makespan - 1
            x = figure(svg, x, *split_unit(change(error)), "measured over predicted")
    busy = [share for device, share in device_busy(timeline).items() if device.split(":")[0] != "cpu"]
    if busy:
        x = figure(svg, x, *split_unit(percent(sum(busy) / len(busy))), "accelerators busy, mean")
    copies = union((s.start, s.end) for s in timeline.spans if s.kind == "copy" and s.end > s.start)
    work = union(
        (s.start, s.end) for s in timeline.spans if s.kind == "compute" and not s.run and s.end > s.start
    )
    if copies:
        x = figure(
            svg, x, *split_unit(percent(shared(copies, work) / length(copies))), "of copy time under compute"
        )
    waits = sum(max(0.0, s.start - s.ready) for s in timeline.spans if s.ready is not None)
    figure(svg, x, *split_unit(seconds(waits)), "copies ready but queued")


def _legend(svg: Svg, both: bool) -> None:
    looks = list(shades((("cpu", True), ("0", False), ("1", False))).values())
    x, y = svg.width - MARGIN - 345, 104.0
    for index, shade in enumerate(looks):
        if both:
            pale(svg, shade, x + index * 15, y - 4, 14, 10)
        svg.rect(x + index * 15, y + 18, 14, 11, rx="2", fill=shade.hue)
    svg.text(x + 54, y + 5, "predicted" if both else "", 12)
    svg.text(x + 54, y + 28, "measured" if both else "at work", 12)
    x += 150
    svg.rect(x, y - 3, 30, 10, fill=WAIT_FILL, stroke=WAIT, stroke_dasharray="2 2")
    svg.text(x + 40, y + 5, "ready, bus busy", 12)
    svg.line((x, y + 23), (x + 30, y + 23), stroke=INK, stroke_width="4")
    svg.text(x + 40, y + 28, "on the critical path", 12)


def _phases(svg: Svg) -> None:
    """Under the line of the title: how the phases of a training step look."""
    shade = shades((("0", False),))["0"]
    x = svg.width - MARGIN - 345
    for phase, text in (("forward", "forward"), ("backward", "backward"), ("update", "sum, update")):
        pale(svg, shade, x, 61, 12, 10, phase)
        solid(svg, shade, x + 13, 61, 16, 10, phase)
        svg.text(x + 36, 70, text, 12)
        x += 36 + fonts.width(text, 12) + 22


def _rows(svg: Svg, timeline: Timeline, axis: Axis) -> float:
    devices = tuple(dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes))
    look = shades((device, device.split(":")[0] == "cpu") for device in devices)
    predicted = timeline.predicted
    real, planned = top_spans(timeline), top_spans(predicted) if predicted else {}
    busy, overlap = busy_shares(timeline), overlaps(timeline)
    hot = {id(span) for span in happened(timeline)}
    svg.text(RIGHT + 30, 196, "busy", 12, bold=True)
    svg.text(RIGHT + 142, 196, "overlap", 12, bold=True)
    y = 214.0
    for position, device in enumerate(devices):
        if position:
            svg.line((MARGIN, y - 7), (svg.width - MARGIN, y - 7), stroke=GRID, stroke_width="1.4")
        lanes = [lane for lane in timeline.lanes if lane.rsplit("/", 1)[0] == device]
        lanes = [lane for lane in lanes if real[lane] or planned.get(lane)] or lanes[:1]
        shade = look[device]
        for index, lane in enumerate(lanes):
            queue = lane.rsplit("/", 1)[1]
            copies = not queue.isdigit()
            above = (12.0 if copies else 18.0) if predicted else 0.0
            below = 20.0 if copies else 30.0
            tall = above + below + 14 + (2 if predicted else 0)
            middle = y + tall / 2
            svg.rect(LEFT, y, RIGHT - LEFT, tall, fill=LANE)
            name = (
                "compute"
                if queue == "0"
                else _NAMES.get(queue, f"copy {queue}" if copies else f"compute {queue}")
            )
            name_wide = fonts.width(name, 12)
            if not index:
                svg.swatch(shade, MARGIN, middle - 12, 24, 22)
                room = LEFT - 12 - name_wide - 8 - (MARGIN + 32)
                if fonts.width(device, 13, True) <= room:
                    svg.text(MARGIN + 32, middle + 5, device, 13, bold=True)
                    svg.text(LEFT - 12, middle + 4, name, 12, anchor="end")
                else:
                    svg.text(
                        MARGIN + 32,
                        middle - 2,
                        fonts.fit(device, LEFT - 12 - MARGIN - 32, 13, True),
                        13,
                        bold=True,
                    )
                    svg.text(LEFT - 12, middle + 14, name, 12, QUIET, anchor="end")
            else:
                svg.text(LEFT - 12, middle + 4, name, 12, anchor="end")
            if predicted:
                planned_bars(svg, planned.get(lane, ()), axis, shade, y + 5, above)
            measured_bars(
                svg, real[lane], axis, shade, y + 7 + above + (1 if predicted else 0), below, hot, copies
            )
            _bar(svg, RIGHT + 30, middle, busy[lane], shade.hue)
            part = overlap[lane]
            if part is not None:
                _bar(svg, RIGHT + 142, middle, part, "#8792A3")
            y += tall + (8 if index + 1 < len(lanes) else 0)
        y += 14
    return y


def _bar(svg: Svg, x: float, middle: float, share: float, color: str) -> None:
    svg.rect(x, middle - 5, 52, 10, rx="2", fill=GRID)
    svg.rect(x, middle - 5, 52 * min(1.0, share), 10, rx="2", fill=color)
    svg.text(x + 96, middle + 4, percent(share), 12, anchor="end")


def _axis(svg: Svg, axis: Axis, bottom: float, top: float) -> None:
    moments, unit, scale = ticks(axis.span, RIGHT - LEFT, 96)
    step = moments[1] if len(moments) > 1 else axis.span
    svg.text(LEFT - 22, 196, unit, 12, QUIET, anchor="end")
    for when in moments:
        x = axis.x(when)
        svg.parts.insert(0, f'<path d="M{x:.2f} 204V{bottom:.2f}" stroke="{GRID}" stroke-width="1"/>')
        svg.text(x, 196, tick_text(when, step, scale), 12, QUIET, anchor="middle")
        svg.text(x, bottom + 18, tick_text(when, step, scale), 12, QUIET, anchor="middle")


def _ends(svg: Svg, timeline: Timeline, axis: Axis, bottom: float) -> None:
    sides: list[tuple[float, str, str | None]] = [
        (timeline.makespan, "measured" if timeline.predicted else "end", None)
    ]
    if timeline.predicted:
        sides.insert(0, (timeline.predicted.makespan, "predicted", "3 3"))
    for when, what, dash in sides:
        x = axis.x(when)
        svg.line((x, 204), (x, bottom), stroke=INK, stroke_width="1.5", stroke_dasharray=dash)
        first = len(sides) == 2 and (what == "predicted") == (sides[0][0] <= sides[1][0])
        side = "end" if first else "start"
        svg.text(x + (-3 if first else 3), 176, f"{what} {seconds(when)}", 11.5, bold=True, anchor=side)


def _memories(svg: Svg, timeline: Timeline, axis: Axis, y: float) -> float:
    devices = tuple(dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes))
    look = shades((device, device.split(":")[0] == "cpu") for device in devices)
    planned: dict[str, Memory] = (
        {m.device: m for m in timeline.predicted.memory} if timeline.predicted else {}
    )
    for memory in timeline.memory:
        if memory.steps and memory.peak:
            memory_row(
                svg,
                memory,
                planned.get(memory.device),
                look[memory.device],
                axis,
                y + 22,
                timeline.makespan,
            )
            y += MEMORY_HIGH
    return y + 6
