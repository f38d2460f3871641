"""The bars of one lane of a timeline: predicted pale, measured solid, with names, waits and idle times where they
fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...ir.device import kind_of
from ...ir.timeline import Span, Timeline
from ...system.text import seconds, size
from ..drawing import design
from ..drawing.design import INK, PAPER, QUIET, WAIT, Shade, fill_of, shades
from ..drawing.svg import MARGIN, Svg, ticks
from ..placed.fold import block_of

WIDTH = 1600.0
LEFT = 176.0
_PLAIN = 20
"""Number of spans of a compute lane above which the successive ones of one block of layers are one bar."""
_NARROW, _NEAR = 40.0, 5.0
"""Pixels below which a bar joins its neighbour of the same block, and at most between the two."""


class Chart(Svg):
    """The picture of a timeline: the shades of its devices, and its time axis."""

    def __init__(self, timeline: Timeline, width: float = WIDTH) -> None:
        super().__init__(width, 0, f"timeline of {timeline.title}")
        self.right, self.bars = width - MARGIN - 190.0, 0
        """Right edge of the lanes in pixels, and number of bars with facts."""
        titles = [title for span in timeline.spans for title in (span.title, _unit(span)[0])]
        self.names = design.Names(dict.fromkeys(titles))
        devices = dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes)
        self.shades = shades((device, kind_of(device).host) for device in devices)
        sides = [side for side in (timeline, timeline.predicted) if side]
        ends = [end for side in sides for end in (side.makespan, *(span.end for span in side.spans))]
        self.span = max(ends) * 1.02
        self.ends = [self.x(side.makespan) for side in sides]
        self.ticks, self.unit = ticks(self.span, self.right - LEFT, 96.0)

    def x(self, when: float) -> float:
        """Return the horizontal position of a time, in pixels."""
        return LEFT + (when / self.span * (self.right - LEFT) if self.span else 0.0)

    def lane(self, y: float, h: float) -> None:
        """Draw the background of a lane, with ticks as hairlines."""
        self.rect(LEFT, y, self.right - LEFT, h, "lane")
        for when, _ in self.ticks:
            self.line((self.x(when), y), (self.x(when), y + h), "grid")


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar from `x` on, `w` wide, for one span, or for several of one block of layers or below a pixel. `waits`:
    start of the box of a copy's wait; None if invisible."""

    x: float
    w: float
    spans: tuple[Span, ...]
    waits: float | None = None

    @property
    def begin(self) -> float:
        """Left edge in pixels, its wait included."""
        return self.x if self.waits is None else self.waits

    @property
    def title(self) -> str:
        """Name of its span, or of the module of several; empty for several modules."""
        units = {_unit(span) for span in self.spans if span.module or span.kind == "copy"}
        if len(self.spans) == 1:
            return self.spans[0].title
        return " ".join(filter(None, units.pop())).removesuffix(" forward") if len(units) == 1 else ""

    @property
    def right(self) -> float:
        """Right edge in pixels."""
        return self.x + self.w


def _bars(chart: Chart, spans: tuple[Span, ...]) -> list[_Bar]:
    bars: list[_Bar] = []
    whole = len(spans) > _PLAIN and spans[0].kind == "compute"
    for span in spans:
        x = chart.x(span.start)
        w = chart.x(span.end) - x
        last = bars[-1] if bars else None
        waits = None
        if span.ready is not None:
            waits = max(chart.x(span.ready), last.right + 1 if last else LEFT)
            waits = waits if x - waits >= 3 else None
        if last and waits is None and _joins(last, span, x, w, whole):
            bars[-1] = _Bar(last.x, max(last.w, x + w - last.x), (*last.spans, span), last.waits)
        else:
            bars.append(_Bar(x, w, (span,), waits))
    return bars


def _joins(last: _Bar, span: Span, x: float, w: float, whole: bool) -> bool:
    """Return True if a span belongs to the block of the bar before it: with `whole` always, else if one is narrow; or
    if it touches that bar and is below a pixel.

    Spans outside of modules, such as sums of gradients in a backward, belong to what is before them.
    """
    first, gap = last.spans[0], x - last.right
    loose = span.kind == "compute" and not span.module and span.phase == first.phase
    alike = (whole or min(last.w, w) < _NARROW) and (loose or _unit(first) == _unit(span))
    return (alike and gap <= _NEAR) or (gap < 0.5 and w < 1.2 and last.w < 8)


def _unit(span: Span) -> tuple[str, str]:
    """Return the numbered or outermost module of a span, and its phase: `encoder.layer.3`, `backward`; for a copy, the
    numbered module of its value, else the value."""
    if span.kind == "copy":
        return block_of(re.split("[ ,]", span.title, maxsplit=1)[0]) or span.title, ""
    return block_of(span.module) or span.module.partition(".")[0], span.phase


def pale(svg: Svg, shade: Shade, x: float, y: float, w: float, h: float, phase: str = "") -> None:
    """Draw a predicted bar, filled like a box of its phase."""
    corner = 2 if w > 4 else None
    svg.rect(x, y, w, h, rx=corner, fill=fill_of(shade, phase))
    if w > 5 and phase in ("", "forward", "backward"):
        svg.pattern(shade, x, y, w, h, stroke_opacity=0.55)
    svg.rect(x, y, w, h, rx=corner, fill="none", stroke=shade.hue)


def solid(svg: Svg, shade: Shade, x: float, y: float, w: float, h: float, phase: str = "") -> None:
    """Draw a measured bar: darker for the backward, outlined for sums and updates."""
    corner = 2 if w > 5 else None
    if phase in ("reduction", "update") and w > 4:
        outline: dict[str, Any] = {"fill": "#FFFFFF", "stroke": shade.hue, "stroke_width": 1.4}
        svg.rect(x + 0.7, y + 0.7, w - 1.4, h - 1.4, rx=corner, **outline)
    else:
        svg.rect(x, y, w, h, rx=corner, fill=shade.text if phase == "backward" else shade.hue)


def planned_bars(chart: Chart, spans: tuple[Span, ...], shade: Shade, y: float, h: float) -> None:
    """Draw the predicted spans of a lane, `h` high from `y` down."""
    for bar in _bars(chart, spans):
        pale(chart, shade, bar.x + 0.5, y, max(bar.w - 1, 0.8), h, bar.spans[0].phase)


def measured_bars(
    chart: Chart, spans: tuple[Span, ...], shade: Shade, y: float, h: float, hot: set[tuple[str, str]]
) -> None:
    """Draw the spans of a lane, `h` high from `y` down; those in `hot`, by lane and name, are underlined in black."""
    base = y + h / 2 + 4
    bars = _bars(chart, spans)
    for bar, after in zip(bars, [*bars[1:], None]):
        span, title = bar.spans[0], bar.title
        if bar.waits is not None:
            chart.rect(bar.waits, y + 2, bar.x - bar.waits - 1, h - 4, "wait box")
            wait = f"bus busy {seconds(span.start - (span.ready or 0.0))}"
            _inside(chart, bar.waits, bar.x, base, [wait], WAIT)
        _bar(chart, bar, shade, y, h, hot)
        left = bar.right
        until = min(
            after.begin if after else chart.right, *(end for end in (*chart.ends, chart.right) if end > left)
        )
        name = chart.names.fit(title, bar.w - 5, 11.5, True, cut=False)
        beside = "" if name else chart.names.fit(title, min(170.0, until - left - 14), 11.5, cut=False)
        if name:
            light = span.phase != "backward" and shade.hue in ("#E69F00", "#56B4E9", "#CC79A7")
            hollow = span.phase in ("reduction", "update")
            color = INK if hollow else PAPER if span.phase == "backward" else "black" if light else "white"
            _inside(chart, bar.x, bar.right, base, [name], color, bold=True)
        elif beside:
            chart.text(left + 7, base, beside, 11.5)
            left += 7 + design.width(beside, 11.5)
        if after and span.kind == "compute":
            idle = seconds(after.spans[0].start - bar.spans[-1].end)
            _inside(chart, left, until, base, [f"idle {idle}", idle], QUIET)


def _inside(
    chart: Chart, left: float, right: float, y: float, texts: list[str], color: str, bold: bool = False
) -> None:
    """Write the first of `texts` that fits between two positions in their middle; none if none fits."""
    fitting = (text for text in texts if design.width(text, 11.5, bold) + 5 <= right - left)
    chart.text((left + right) / 2, y, next(fitting, ""), 11.5, color, bold=bold, anchor="middle")


def _bar(svg: Chart, bar: _Bar, shade: Shade, y: float, h: float, hot: set[tuple[str, str]]) -> None:
    first, last, count = bar.spans[0], bar.spans[-1], len(bar.spans)
    critical = any((span.lane, span.name) in hot for span in bar.spans)
    name = bar.title or f"{first.title} … {last.title}"
    facts = [f"{name}: {seconds(first.start)} → {seconds(last.end)}"]
    facts += [size(first.bytes)] if first.kind == "copy" and count == 1 else []
    facts += [f"{span.title}: {seconds(span.seconds)}" for span in bar.spans[:12] if count > 1]
    facts += [f"and {count - 12} more"] if count > 12 else []
    facts += [first.source] if first.source and count == 1 else []
    svg.bars += 1
    with svg.group("\n".join(facts), data_facts=f"s{svg.bars}", data_critical="" if critical else None):
        edge = 0.6 if bar.w > 3 else 0.0
        phase = first.phase if bar.title else ""
        solid(svg, shade, bar.x + edge, y, max(bar.w - 2 * edge, 0.8), h, phase)
        if critical:
            svg.rect(bar.x, y + h, max(bar.w, 0.8), 3.5, fill=INK)
