"""The bars of one lane of a timeline: predicted pale, measured solid, with names, waits and idle times
beside them."""

from __future__ import annotations

import bisect
from itertools import pairwise

from ...ir.timeline import Span
from ...text.tables import seconds, size
from ..drawing import fonts
from ..drawing.palette import BRACKET, INK, QUIET, WAIT, WAIT_FILL, Shade, fill_of
from ..drawing.svg import Svg
from ..placed.free_space import Label, Rect, Room
from ..placed.layout import MARGIN, WIDTH
from ..report.facts import union

LEFT, RIGHT = 196.0, WIDTH - MARGIN - 238.0
Block = tuple[float, float, tuple[Span, ...]]


class Axis:
    """The time axis over `span` seconds: pixels of a moment; and the room its labels have."""

    def __init__(self, span: float) -> None:
        self.span = span
        self.room = Room()

    def x(self, when: float) -> float:
        """Where a moment is."""
        return LEFT + (when / self.span * (RIGHT - LEFT) if self.span else 0.0)


def pale(svg: Svg, shade: Shade, x: float, y: float, w: float, h: float, phase: str = "") -> None:
    """A predicted bar, filled as a box of its phase is."""
    svg.rect(x, y, w, h, rx="2" if w > 4 else None, fill=fill_of(shade, phase))
    if w > 5 and phase in ("", "forward", "backward"):
        svg.pattern(shade, x, y, w, h, opacity="0.55")
    svg.rect(x, y, w, h, rx="2" if w > 4 else None, fill="none", stroke=shade.hue, stroke_width="1")


def planned_bars(svg: Svg, spans: tuple[Span, ...], axis: Axis, shade: Shade, y: float, h: float) -> None:
    """The predicted spans of a lane, `h` high from `y` down."""
    for x, w, held in _blocks(spans, axis):
        if w < 2.5 or len(held) > 1:
            svg.rect(x, y, max(w, 0.8), h, fill=shade.fill, stroke=shade.hue, stroke_width="0.6")
        else:
            pale(svg, shade, x + 0.5, y, max(w - 1, 0.8), h, held[0].phase)


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


def measured_bars(
    svg: Svg,
    spans: tuple[Span, ...],
    axis: Axis,
    shade: Shade,
    y: float,
    h: float,
    hot: set[int],
    copies: bool,
) -> None:
    """The spans of a lane, `h` high from `y` down; those in `hot` (by id) are underlined in ink."""
    held = _blocks(spans, axis)
    for x, w, _ in held:
        axis.room.take(Rect(x, y, max(w, 1.0), h))
    for index, block in enumerate(held):
        start = _waited(block, held[index - 1] if index else None, axis)
        if start is not None:
            axis.room.take(Rect(start, y, block[0] - start, h))
            box = {"rx": "2", "fill": WAIT_FILL, "stroke": WAIT, "stroke_dasharray": "2.5 2"}
            svg.rect(start, y + 2, block[0] - start - 1, h - 4, **box)
        _bar(svg, block, shade, y, h, hot)
    named = [_name(svg, block, axis, shade, y + h / 2 + 4) for block in held]
    for index, block in enumerate(held):
        start = _waited(block, held[index - 1] if index else None, axis)
        if start is not None:
            _wait_name(svg, block, axis, start, y + h / 2 + 4)
    if not copies:
        _idle(svg, spans, axis, y + h / 2, named)


def _waited(block: Block, before: Block | None, axis: Axis) -> float | None:
    """Where the box of a copy's wait begins, None when there is none to be seen."""
    span = block[2][0]
    if span.ready is None or len(block[2]) > 1:
        return None
    start = max(axis.x(span.ready), before[0] + before[1] + 1 if before else LEFT)
    return start if block[0] - start >= 3 else None


def _bar(svg: Svg, block: Block, shade: Shade, y: float, h: float, hot: set[int]) -> None:
    x, w, held = block
    span = held[0]
    svg.open()
    names = span.title if len(held) == 1 else f"{len(held)} spans, {span.title} … {held[-1].title}"
    more = f", {size(span.bytes)}" if span.kind == "copy" and len(held) == 1 else ""
    svg.tooltip(f"{names}: {seconds(span.start)} → {seconds(held[-1].end)}{more}")
    edge = 0.6 if w > 3 else 0.0
    phase = span.phase if len(held) == 1 else ""
    solid(svg, shade, x + edge, y, max(w - 2 * edge, 0.8), h, phase)
    if any(id(item) in hot for item in held):
        svg.rect(x, y + h, max(w, 0.8), 3.5, fill=INK)
    svg.close()


def solid(svg: Svg, shade: Shade, x: float, y: float, w: float, h: float, phase: str = "") -> None:
    """A measured bar: darker for the backward, an outline for sums and updates."""
    round_ = "2" if w > 5 else None
    if phase in ("reduction", "update") and w > 4:
        svg.rect(
            x + 0.7,
            y + 0.7,
            w - 1.4,
            h - 1.4,
            rx=round_,
            fill="#FFFFFF",
            stroke=shade.hue,
            stroke_width="1.4",
        )
        return
    svg.rect(x, y, w, h, rx=round_, fill=shade.text if phase == "backward" else shade.hue)


def _name(svg: Svg, block: Block, axis: Axis, shade: Shade, y: float) -> float:
    """The name inside its bar where it fits, else to the right where that is free; returns its right
    edge there."""
    x, w, held = block
    span = held[0]
    text = fonts.fit_words(span.title, w - 8, 11.5, True) if len(held) == 1 else ""
    if text == span.title or len(text) >= 7:
        light = span.phase != "backward" and shade.hue in ("#E69F00", "#56B4E9", "#CC79A7")
        color = INK if light or span.phase in ("reduction", "update") else "#FFFFFF"
        half = fonts.width(text, 11.5, True) / 2
        spots = [
            Label(at, y, text, 11.5, color, True, "middle")
            for at in (x + w / 2, x + 5 + half, x + w - 5 - half)
        ]
        label = next((label for label in spots if axis.room.unlined(label.rect)), spots[0])
        svg.text(label.x, y, text, 11.5, color, bold=True, anchor="middle")
        return 0.0
    name = span.title if len(held) == 1 else f"{len(held)} {'copies' if span.kind == 'copy' else 'runs'}"
    label = Label(x + w + 7, y, fonts.fit_words(name, 170, 11.5), 11.5)
    if label.text and label.rect.x + label.rect.w < RIGHT - 3 and axis.room.place([label], pad=3):
        svg.text(label.x, label.y, label.text, label.size, halo=True)
        return label.rect.x + label.rect.w
    return 0.0


def _wait_name(svg: Svg, block: Block, axis: Axis, start: float, y: float) -> None:
    span = block[2][0]
    text = f"bus busy {seconds(span.start - (span.ready or 0.0))}"
    inside = Label((start + block[0]) / 2, y, text, 11.5, WAIT, anchor="middle")
    if inside.rect.w + 8 <= block[0] - start:
        svg.text(inside.x, y, text, 11.5, WAIT, anchor="middle")
        return
    label = Label(start - 6, y, text, 11.5, WAIT, anchor="end")
    if label.rect.x > LEFT + 2 and axis.room.place([label], pad=3):
        svg.text(label.x, y, text, 11.5, WAIT, anchor="end", halo=True)


def _idle(svg: Svg, spans: tuple[Span, ...], axis: Axis, y: float, named: list[float]) -> None:
    """Brackets over the times in which nothing is done, after a name that stands there, with their length."""
    busy = union((span.start, span.end) for span in spans)
    edges = sorted(named)
    for (_, start), (end, _) in pairwise(busy):
        left, right = axis.x(start) + 5, axis.x(end) - 5
        at = bisect.bisect_left(edges, right) - 1
        if at >= 0 and edges[at] + 8 > left:
            left = edges[at] + 8
        for text in (f"idle {seconds(end - start)}", seconds(end - start)):
            wide = fonts.width(text, 11.5)
            middle = (left + right) / 2
            if right - left < wide + 30:
                continue
            if axis.room.place([Label(middle, y + 4, text, 11.5, anchor="middle")], pad=3):
                for near, far, edge in (
                    (left, middle - wide / 2 - 6, left),
                    (middle + wide / 2 + 6, right, right),
                ):
                    svg.line((near, y), (far, y), stroke=BRACKET, stroke_width="1.2")
                    svg.line((edge, y - 5), (edge, y + 5), stroke=BRACKET, stroke_width="1.2")
                svg.text(middle, y + 4, text, 11.5, QUIET, anchor="middle")
                break
