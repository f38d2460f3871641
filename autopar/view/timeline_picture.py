"""The timeline as SVG: each lane predicted above and measured below on one time scale, memory under them."""

from __future__ import annotations

from dataclasses import dataclass

from ..tables import percent, seconds, size
from ..timeline import Memory, Span, Timeline
from . import fonts
from .facts import busy_shares, device_busy, length, overlaps, shared, top_spans, union
from .layout import MARGIN, WIDTH, tick_text, ticks
from .memory_picture import MEMORY_HIGH, memory_row
from .palette import GRID, INK, LANE, QUIET, WAIT, WAIT_FILL, Shade, shades
from .panels import figure, split_unit, strip, title
from .svg import Svg

LEFT, RIGHT = 196.0, WIDTH - 270.0
_NAMES = {"in": "copy in", "out": "copy out"}


@dataclass(frozen=True)
class Axis:
    """The time axis: pixels of a moment."""

    span: float

    def x(self, when: float) -> float:
        """Where a moment is."""
        return LEFT + (when / self.span * (RIGHT - LEFT) if self.span else 0.0)


def timeline_svg(timeline: Timeline) -> str:
    """The picture of a timeline, with its prediction above it when it has one."""
    predicted = timeline.predicted
    ends = [timeline.makespan, *([predicted.makespan] if predicted else [])]
    ends += [span.end for side in (timeline, predicted) if side for span in side.spans]
    axis = Axis(max(ends, default=0.0) * 1.02)
    svg = Svg(WIDTH, 0, f"timeline of {timeline.title}")
    what = "predicted above measured" if predicted else "timeline"
    count = sum(not span.run for span in timeline.spans)
    under = f"{count} runs and copies in {len(timeline.lanes)} lanes."
    if timeline.late:
        under += f" Emulated work ended up to {percent(timeline.late)} late."
    title(svg, f"{timeline.title}: {what}", under, timeline.label)
    _figures(svg, timeline)
    _legend(svg, predicted is not None)
    bottom = _rows(svg, timeline, axis)
    bottom = _memories(svg, timeline, axis, bottom)
    _axis(svg, axis, bottom, 176.0)
    _ends(svg, timeline, axis, bottom)
    notes = "autopar · busy: share of the whole call · overlap: share of the lane's busy time during which another lane computes"
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
            x = figure(svg, x, f"{error * 100:+.0f}", "%", "measured over predicted")
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
    x, y = svg.width - MARGIN - 330, 104.0
    for index, shade in enumerate(looks):
        if both:
            _pale(svg, shade, x + index * 15, y - 4, 14, 10)
        svg.rect(x + index * 15, y + 18, 14, 11, rx="2", fill=shade.hue)
    svg.text(x + 54, y + 5, "predicted" if both else "", 12)
    svg.text(x + 54, y + 28, "measured" if both else "at work", 12)
    x += 150
    svg.rect(x, y - 3, 30, 10, fill=WAIT_FILL, stroke=WAIT, stroke_dasharray="2 2")
    svg.text(x + 40, y + 5, "ready, queue or bus busy", 12)
    svg.line((x, y + 23), (x + 30, y + 23), stroke=INK, stroke_width="4")
    svg.text(x + 40, y + 28, "on the critical path", 12)


def _rows(svg: Svg, timeline: Timeline, axis: Axis) -> float:
    devices = tuple(dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes))
    look = shades((device, device.split(":")[0] == "cpu") for device in devices)
    predicted = timeline.predicted
    real, planned = top_spans(timeline), top_spans(predicted) if predicted else {}
    busy, overlap = busy_shares(timeline), overlaps(timeline)
    hot = {id(span) for span in chain(timeline)}
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
            copies = queue in _NAMES
            above = (12.0 if copies else 18.0) if predicted else 0.0
            below = 20.0 if copies else 30.0
            tall = above + below + 14 + (2 if predicted else 0)
            middle = y + tall / 2
            svg.rect(LEFT, y, RIGHT - LEFT, tall, fill=LANE)
            name = _NAMES.get(queue, "compute" if queue == "0" else f"compute {queue}")
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
                _planned(svg, planned.get(lane, ()), axis, shade, y + 5, above)
            _measured(
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
    svg.rect(x, middle - 5, 56, 10, rx="2", fill=GRID)
    svg.rect(x, middle - 5, 56 * min(1.0, share), 10, rx="2", fill=color)
    svg.text(x + 98, middle + 4, percent(share), 12, anchor="end")


def _pale(svg: Svg, shade: Shade, x: float, y: float, w: float, h: float) -> None:
    svg.rect(x, y, w, h, rx="2" if w > 4 else None, fill=shade.fill)
    if w > 5:
        svg.pattern(shade, x, y, w, h, opacity="0.55")
    svg.rect(x, y, w, h, rx="2" if w > 4 else None, fill="none", stroke=shade.hue, stroke_width="1")


def _planned(svg: Svg, spans: tuple[Span, ...], axis: Axis, shade: Shade, y: float, h: float) -> None:
    for x, w, held in _blocks(spans, axis):
        if w < 2.5 or len(held) > 1:
            svg.rect(x, y, max(w, 0.8), h, fill=shade.fill, stroke=shade.hue, stroke_width="0.6")
        else:
            _pale(svg, shade, x + 0.5, y, max(w - 1, 0.8), h)


def _blocks(spans: tuple[Span, ...], axis: Axis) -> list[tuple[float, float, tuple[Span, ...]]]:
    """Spans as (x, width, spans): those under a pixel that touch are drawn as one."""
    done: list[tuple[float, float, tuple[Span, ...]]] = []
    for span in spans:
        x = axis.x(span.start)
        w = axis.x(span.end) - x
        if (
            done
            and w < 1.2
            and done[-1][1] < 8
            and len(done[-1][2]) < 64
            and x - (done[-1][0] + done[-1][1]) < 0.5
        ):
            before = done[-1]
            if before[1] < 1.2 or len(before[2]) > 1:
                done[-1] = (before[0], max(before[1], x + w - before[0]), (*before[2], span))
                continue
        done.append((x, w, (span,)))
    return done


def _measured(
    svg: Svg,
    spans: tuple[Span, ...],
    axis: Axis,
    shade: Shade,
    y: float,
    h: float,
    hot: set[int],
    copies: bool,
) -> None:
    blocks = _blocks(spans, axis)
    rights = [x + w for x, w, _ in blocks]
    for index, (x, w, held) in enumerate(blocks):
        span = held[0]
        svg.open()
        names = span.name if len(held) == 1 else f"{len(held)} spans, {span.name} … {held[-1].name}"
        more = f", {size(span.bytes)}" if span.kind == "copy" and len(held) == 1 else ""
        svg.tooltip(f"{names}: {seconds(span.start)} → {seconds(held[-1].end)}{more}")
        before = rights[index - 1] if index else LEFT
        if span.ready is not None and len(held) == 1 and x - axis.x(span.ready) >= 3:
            start = max(axis.x(span.ready), before + 1)
            if x - start >= 3:
                svg.rect(
                    start,
                    y + 2,
                    x - start - 1,
                    h - 4,
                    rx="2",
                    fill=WAIT_FILL,
                    stroke=WAIT,
                    stroke_dasharray="2.5 2",
                )
        svg.rect(
            x + (0.6 if w > 3 else 0),
            y,
            max(w - (1.2 if w > 3 else 0), 0.8),
            h,
            rx="2" if w > 5 else None,
            fill=shade.hue,
        )
        if any(id(item) in hot for item in held):
            svg.rect(x, y + h, max(w, 0.8), 3.5, fill=INK)
        text = fonts.fit(span.name, w - 10, 11.5, True) if len(held) == 1 else ""
        if text == span.name or len(text) >= 6:
            light = shade.hue in ("#E69F00", "#56B4E9", "#CC79A7")
            svg.text(
                x + w / 2, y + h / 2 + 4, text, 11.5, INK if light else "#FFFFFF", bold=True, anchor="middle"
            )
        elif copies:
            _beside(svg, span, len(held), x, w, y + h / 2 + 4, before, _next_left(blocks, index, axis))
        svg.close()
    if not copies:
        _idle(svg, spans, axis, y + h / 2)


def _next_left(blocks: list[tuple[float, float, tuple[Span, ...]]], index: int, axis: Axis) -> float:
    if index + 1 == len(blocks):
        return RIGHT - 4
    x, _, held = blocks[index + 1]
    ready = held[0].ready
    return min(x, axis.x(ready)) if ready is not None else x


def _beside(
    svg: Svg, span: Span, count: int, x: float, w: float, y: float, before: float, after: float
) -> None:
    """A copy's name to its right where it fits, its wait to the left of the wait box."""
    name = span.name if count == 1 else f"{count} copies"
    if fonts.width(name, 11.5) + 14 <= after - (x + w):
        svg.text(x + w + 7, y, name, 11.5)


def _idle(svg: Svg, spans: tuple[Span, ...], axis: Axis, y: float) -> None:
    """Brackets over the times in which nothing is done, with their length where it fits."""
    busy = union((span.start, span.end) for span in spans)
    for (_, start), (end, _) in zip(busy, busy[1:]):
        left, right = axis.x(start) + 5, axis.x(end) - 5
        text = f"idle {seconds(end - start)}"
        wide = fonts.width(text, 11.5)
        if right - left < wide + 30:
            text = seconds(end - start)
            wide = fonts.width(text, 11.5)
        if right - left < wide + 16:
            continue
        middle = (left + right) / 2
        for a, b, edge in ((left, middle - wide / 2 - 6, left), (middle + wide / 2 + 6, right, right)):
            svg.line((a, y), (b, y), stroke="#8892A2", stroke_width="1.2")
            svg.line((edge, y - 5), (edge, y + 5), stroke="#8892A2", stroke_width="1.2")
        svg.text(middle, y + 4, text, 11.5, QUIET, anchor="middle")


def chain(timeline: Timeline) -> list[Span]:
    """The critical path of what happened, walked back from the last end through what ended last before each start.

    A timeline holds no dependencies, so this takes the latest end on any lane that each step can have waited for.
    """
    spans = sorted(
        (s for s in timeline.spans if not s.run and s.end > s.start), key=lambda s: (s.end, s.start)
    )
    if not spans:
        return []
    slop = timeline.makespan * 2e-3
    found, index = [], len(spans) - 1
    while index >= 0:
        span = spans[index]
        found.append(span)
        index -= 1
        while index >= 0 and spans[index].end > span.start + slop:
            index -= 1
        best = index
        while best >= 0 and index >= 0 and spans[best].end >= spans[index].end - slop:
            if _related(spans[best], span):
                index = best
                break
            best -= 1
    return found[::-1]


def _related(before: Span, after: Span) -> bool:
    """Whether the second could have waited for the first: one lane, or data that comes to its device."""
    if before.lane == after.lane:
        return True
    source = before.dst if before.kind == "copy" else before.device
    return source == (after.src if after.kind == "copy" else after.device)


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
    sides = [(timeline.makespan, "measured" if timeline.predicted else "end", None)]
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
                axis.x,
                (LEFT, RIGHT),
                y + 22,
                timeline.makespan,
            )
            y += MEMORY_HIGH
    return y + 6
