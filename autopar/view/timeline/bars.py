"""The bars of one lane of a timeline: predicted pale, measured solid, with names, waits and idle times where they
fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ir.device import kind_of
from ...ir.timeline import Span, Timeline
from ...system.text import seconds, size
from ..drawing import design
from ..drawing.design import INK, PAPER, QUIET, WAIT, Shade, fill_of, shades
from ..drawing.svg import MARGIN, Svg, ticks

WIDTH = 1600.0
LEFT, RIGHT = 196.0, WIDTH - MARGIN - 238.0
_MOST_JOINED = 64


class Chart(Svg):
    """The picture of a timeline: the shades of its devices, and its time axis."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(WIDTH, 0, f"timeline of {timeline.title}")
        devices = dict.fromkeys(lane.rsplit("/", 1)[0] for lane in timeline.lanes)
        self.shades = shades((device, kind_of(device).host) for device in devices)
        sides = [side for side in (timeline, timeline.predicted) if side]
        ends = [end for side in sides for end in (side.makespan, *(span.end for span in side.spans))]
        self.span = max(ends) * 1.02
        self.ends = [self.x(side.makespan) for side in sides]
        self.ticks, self.unit = ticks(self.span, RIGHT - LEFT, 96.0)

    def x(self, when: float) -> float:
        """Return the horizontal position of a time, in pixels."""
        return LEFT + (when / self.span * (RIGHT - LEFT) if self.span else 0.0)

    def lane(self, y: float, h: float) -> None:
        """Draw the background of a lane, with ticks as hairlines."""
        self.rect(LEFT, y, RIGHT - LEFT, h, "lane")
        for when, _ in self.ticks:
            self.line((self.x(when), y), (self.x(when), y + h), "grid")


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar from `x` on, `w` wide, for one span, or for several touching ones below a pixel. `waits`: start of the
    box of a copy's wait; None if invisible."""

    x: float
    w: float
    spans: tuple[Span, ...]
    waits: float | None = None

    @property
    def begin(self) -> float:
        """Left edge in pixels, its wait included."""
        return self.x if self.waits is None else self.waits

    @property
    def right(self) -> float:
        """Right edge in pixels."""
        return self.x + self.w


def _bars(chart: Chart, spans: tuple[Span, ...]) -> list[_Bar]:
    bars: list[_Bar] = []
    for span in spans:
        x = chart.x(span.start)
        w = chart.x(span.end) - x
        last = bars[-1] if bars else None
        thin = w < 1.2 and last is not None and (last.w < 1.2 or (last.w < 8 and len(last.spans) > 1))
        if last and thin and x - last.right < 0.5 and len(last.spans) < _MOST_JOINED:
            bars[-1] = _Bar(last.x, max(last.w, x + w - last.x), (*last.spans, span), last.waits)
            continue
        waits = None
        if span.ready is not None:
            waits = max(chart.x(span.ready), last.right + 1 if last else LEFT)
        bars.append(_Bar(x, w, (span,), waits if waits is not None and x - waits >= 3 else None))
    return bars


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
        if bar.w < 2.5 or len(bar.spans) > 1:
            chart.rect(bar.x, y, max(bar.w, 0.8), h, fill=shade.fill, stroke=shade.hue, stroke_width=0.6)
        else:
            pale(chart, shade, bar.x + 0.5, y, bar.w - 1, h, bar.spans[0].phase)


def measured_bars(
    chart: Chart,
    spans: tuple[Span, ...],
    shade: Shade,
    y: float,
    h: float,
    hot: set[tuple[str, str]],
    copies: bool,
) -> None:
    """Draw the spans of a lane, `h` high from `y` down; those in `hot`, by lane and name, are underlined in black."""
    base = y + h / 2 + 4
    bars = _bars(chart, spans)
    for bar, after in zip(bars, [*bars[1:], None]):
        span, several = bar.spans[0], len(bar.spans) > 1
        if bar.waits is not None:
            chart.rect(bar.waits, y + 2, bar.x - bar.waits - 1, h - 4, "wait box")
            wait = f"bus busy {seconds(span.start - (span.ready or 0.0))}"
            _inside(chart, bar.waits, bar.x, base, [wait], WAIT)
        _bar(chart, bar, shade, y, h, hot)
        left = bar.right
        until = min(after.begin if after else RIGHT, *(end for end in (*chart.ends, RIGHT) if end > left))
        name = "" if several else _shortened(span.title, bar.w - 8, bold=True)
        beside = "" if several or name else _shortened(span.title, min(170.0, until - left - 14))
        if name:
            light = span.phase != "backward" and shade.hue in ("#E69F00", "#56B4E9", "#CC79A7")
            color = INK if light or span.phase in ("reduction", "update") else PAPER
            _inside(chart, bar.x, bar.right, base, [name], color, bold=True)
        elif beside:
            chart.text(left + 7, base, beside, 11.5)
            left += 7 + design.width(beside, 11.5)
        if after and not copies:
            idle = seconds(after.spans[0].start - bar.spans[-1].end)
            _inside(chart, left, until, base, [f"idle {idle}", idle], QUIET)


def _shortened(title: str, room: float, bold: bool = False) -> str:
    """Return a name, or at least seven characters of it, in `room` pixels; "" if it does not fit."""
    short = design.fit_words(title, room, 11.5, bold)
    return short if short == title or len(short) >= 7 else ""


def _inside(
    chart: Chart, left: float, right: float, y: float, texts: list[str], color: str, bold: bool = False
) -> None:
    """Write the first of `texts` that fits between two positions in their middle; none if none fits."""
    fitting = (text for text in texts if design.width(text, 11.5, bold) + 8 <= right - left)
    chart.text((left + right) / 2, y, next(fitting, ""), 11.5, color, bold=bold, anchor="middle")


def _bar(svg: Svg, bar: _Bar, shade: Shade, y: float, h: float, hot: set[tuple[str, str]]) -> None:
    first, last, count = bar.spans[0], bar.spans[-1], len(bar.spans)
    names = first.title if count == 1 else f"{count} spans, {first.title} … {last.title}"
    more = f", {size(first.bytes)}" if first.kind == "copy" and count == 1 else ""
    with svg.group(f"{names}: {seconds(first.start)} → {seconds(last.end)}{more}"):
        edge = 0.6 if bar.w > 3 else 0.0
        phase = first.phase if count == 1 else ""
        solid(svg, shade, bar.x + edge, y, max(bar.w - 2 * edge, 0.8), h, phase)
        if any((span.lane, span.name) in hot for span in bar.spans):
            svg.rect(bar.x, y + h, max(bar.w, 0.8), 3.5, fill=INK)
