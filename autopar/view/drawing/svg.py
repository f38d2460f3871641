"""A writer of SVG: shapes and text with rounded coordinates and escaped strings, so that equal pictures are equal
bytes; and the frame of every picture: title, badge, key figures, legend, ticks of a time axis.

Patterns are drawn as plain lines, not as `<pattern>`, so that every viewer and printer shows the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from . import design
from .design import INK, QUIET, STYLES, WAIT, Shade, fill_of, strips
from .free_space import Label, Point

MARGIN = 32.0
WIDTH = 1200.0
_STEP = 5.0
"""Approximate pixels between the lines of a pattern."""
SAMPLE = 34.0
"""Width of a legend sample in pixels."""

Sample: TypeAlias = tuple[str, Callable[[float, float], None]]
"""A legend entry: its meaning, and a function that draws a sample from `x` on around `y`."""


Figure: TypeAlias = tuple[str, str]
"""A key figure with its unit, and its meaning."""

_COLOR = re.compile('(?<=")#[0-9A-F]{6}(?=")')
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Replace characters that XML or HTML cannot contain by `�`."""
    return _REFUSED.sub("\ufffd", text)


def escape(text: str) -> str:
    """Escape text for an element or a quoted attribute."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace('"', "&quot;")


def number(value: float) -> str:
    """Format a coordinate with at most two decimals: `12.5`."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attributes(style: str, **pairs: object) -> str:
    values = {name.replace("_", "-"): value for name, value in pairs.items() if value is not None}
    texts = {n: number(v) if isinstance(v, (int, float)) else escape(str(v)) for n, v in values.items()}
    merged = {**STYLES[style], **texts} if style else texts
    return "".join(f' {name}="{text}"' for name, text in merged.items())


class Svg:
    """A picture of `width` × `height` pixels; shapes are painted in the order of the calls.

    `style` is a name in `design.STYLES`; attributes override it, with `stroke_width` for `stroke-width`.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def add(self, tag: str, style: str = "", **attributes: object) -> None:
        """Add an empty element."""
        self.parts.append(f"<{tag}{_attributes(style, **attributes)}/>")

    def rect(self, x: float, y: float, w: float, h: float, style: str = "", **attributes: object) -> None:
        """Add a rectangle."""
        self.add("rect", style, x=x, y=y, width=max(w, 0), height=max(h, 0), **attributes)

    def circle(self, x: float, y: float, r: float, style: str = "", **attributes: object) -> None:
        """Add a circle around (`x`, `y`)."""
        self.add("circle", style, cx=x, cy=y, r=r, **attributes)

    def line(self, start: Point, end: Point, style: str = "", **attributes: object) -> None:
        """Add a straight line."""
        self.add("line", style, x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)

    def path(self, d: str, style: str = "", **attributes: object) -> None:
        """Add a path, if `d` is not empty."""
        if d:
            self.add("path", style, d=d, **attributes)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        color: str = INK,
        *,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """Add text with its baseline at `y`."""
        self.label(Label(x, y, text, size, color, bold, anchor))

    def label(self, label: Label) -> None:
        """Add a label, over its ground."""
        if label.text and label.ground:
            back = label.rect.grown(1.5)
            self.rect(back.x, back.y, back.w, back.h, fill=label.ground)
        if label.text:
            weight, anchor = "bold" if label.bold else None, None if label.anchor == "start" else label.anchor
            place = _attributes(
                "", x=label.x, y=label.y, font_size=label.size, font_weight=weight, text_anchor=anchor
            )
            self.parts.append(f'<text{place} fill="{label.color}">{escape(label.text)}</text>')

    def quantity(self, x: float, y: float, text: str) -> None:
        """Add a large number followed by its unit in grey: `4.90 ms`."""
        figure, _, unit = text.partition(" ")
        place = _attributes("", x=x, y=y, font_size=24, font_weight="bold")
        grey = f'<tspan dx="5" font-size="14" font-weight="normal" fill="{QUIET}">{escape(unit)}</tspan>'
        self.parts.append(f'<text{place} fill="{INK}">{escape(figure)}{grey}</text>')

    @contextmanager
    def group(self, tooltip: str = "", style: str = "", **attributes: object) -> Iterator[None]:
        """Group the shapes of the block, with a tooltip."""
        self.parts.append(f"<g{_attributes(style, **attributes)}>")
        if tooltip:
            self.parts.append(f"<title>{escape(tooltip)}</title>")
        yield
        self.parts.append("</g>")

    def arrow(self, start: Point, end: Point, color: str, wide: float) -> None:
        """Add an arrow with a line `wide` pixels wide and its tip at `end`."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = (dx * dx + dy * dy) ** 0.5
        if not length:
            return
        size = 6 + 2 * wide
        half, ux, uy = size * 0.38, dx / length, dy / length
        bx, by = end[0] - ux * size, end[1] - uy * size
        if length > size:
            self.line(start, (bx, by), stroke=color, stroke_width=wide, stroke_linecap="butt")
        corners = [(bx - uy * half, by + ux * half), end, (bx + uy * half, by - ux * half)]
        self.path(trace(corners) + "Z", fill=color)

    def pattern(self, shade: Shade, x: float, y: float, w: float, h: float, **attributes: object) -> None:
        """Add the pattern of a device over a rectangle."""
        look: dict[str, Any] = {"fill": "none", "stroke": shade.hue, "stroke_width": 1.3, **attributes}
        if shade.pattern == "dots":
            look |= {"stroke_width": 1.5, "stroke_linecap": "round"}
        self.path(hatch(shade.pattern, x, y, w, h), **look)

    def swatch(self, shade: Shade, x: float, y: float, w: float, h: float) -> None:
        """Add a small tile in a device's hue and pattern."""
        self.rect(x, y, w, h, rx=3, fill=shade.fill)
        self.pattern(shade, x + 1, y + 1, w - 2, h - 2)
        self.rect(x, y, w, h, rx=3, fill="none", stroke=shade.hue, stroke_width=1.4)

    def themed(self, theme: str) -> str:
        """Return the picture as SVG text in the theme `light` or `dark`."""
        if theme == "light":
            return str(self)
        return _COLOR.sub(lambda color: design.DARK.get(color[0], color[0]), str(self))

    def __str__(self) -> str:
        w, h = number(self.width), number(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
            f'font-family="{escape(design.FAMILY)}" style="font-variant-numeric:tabular-nums">'
            f'<title>{escape(self.title)}</title><rect width="{w}" height="{h}" fill="#FFFFFF"/>'
            + "\n".join(self.parts)
            + "</svg>\n"
        )


def trace(points: Sequence[Point]) -> str:
    """Return path data through `points`."""
    return "".join(f"{'L' if index else 'M'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points))


def hatch(pattern: str, x: float, y: float, w: float, h: float) -> str:
    """Return path data of a pattern clipped to a rectangle; adjacent tiles of one pattern join without a seam."""
    if w <= 0 or h <= 0:
        return ""
    if pattern == "dots":
        inset = 1.0 if w > 12 else 0.0
        return "".join(
            f"M{number(px)} {number(py)}h.01"
            for py in _multiples(y + 1, y + h - 1, _STEP * 0.8)
            for px in _multiples(x + inset, x + w - inset, _STEP * 0.8)
        )
    parts: list[str] = []
    if pattern == "level":
        parts += [f"M{number(x)} {number(py)}h{number(w)}" for py in _multiples(y, y + h, _STEP * 0.8)]
    if pattern == "upright":
        parts += [f"M{number(px)} {number(y)}v{number(h)}" for px in _multiples(x, x + w, _STEP * 0.8)]
    if pattern in ("slash", "cross"):
        for c in _multiples(x + y, x + w + y + h, _STEP * 1.3):
            low, high = max(x, c - y - h), min(x + w, c - y)
            parts.append(trace(((low, c - low), (high, c - high))))
    if pattern in ("backslash", "cross"):
        for c in _multiples(x - y - h, x + w - y, _STEP * 1.3):
            low, high = max(x, c + y), min(x + w, c + y + h)
            parts.append(trace(((low, low - c), (high, high - c))))
    return "".join(parts)


def _multiples(low: float, high: float, step: float) -> Iterable[float]:
    first = int(low // step) + 1
    return [index * step for index in range(first, int(high // step) + 1) if index * step < high]


def heading(
    svg: Svg, title: str, under: str, label: str, figures: Sequence[Figure], samples: Sequence[Sample]
) -> float:
    """Draw the title, the badge on the kind of figures, the figures and the legend; return their end in pixels."""
    room = beside = svg.width - 2 * MARGIN
    if label:
        wide = design.width(label, 12, True) + 36
        x = svg.width - MARGIN - wide
        svg.rect(x, 25, wide, 27, "badge", rx=13.5)
        svg.text(x + wide / 2, 43, label, 12, WAIT, bold=True, anchor="middle")
        beside = room - wide - 24
    svg.text(MARGIN, 46, design.fit(title, beside, 24, True), 24, bold=True)
    svg.text(MARGIN, 68, design.fit(under, room, 13), 13, QUIET)
    places = _flow([_width(*figure) for figure in figures], 20.0, room, 26.0)
    bottom = 150.0 + 64 * max((row for _, row in places), default=0)
    svg.rect(MARGIN, 86, room, bottom - 86, "lane", rx=6)
    for (quantity, caption), (x, row) in zip(figures, places):
        svg.quantity(MARGIN + x, 116 + 64 * row, quantity)
        svg.text(MARGIN + x, 137 + 64 * row, caption, 12, QUIET)
    rows = 0
    widths = [SAMPLE + 8 + design.width(text, 12) for text, _ in samples]
    for (text, draw), (x, row) in zip(samples, _flow(widths, 0.0, room, 26.0)):
        draw(MARGIN + x, bottom + 20 + 22 * row)
        svg.text(MARGIN + x + SAMPLE + 8, bottom + 24 + 22 * row, text)
        rows = row + 1
    return bottom + 22 * rows


def _width(quantity: str, caption: str) -> float:
    number, _, unit = quantity.partition(" ")
    return max(design.width(number, 24, True) + 5 + design.width(unit, 14), design.width(caption, 12))


def _flow(widths: Sequence[float], left: float, right: float, gap: float) -> list[tuple[float, int]]:
    """Return position and row of items side by side, in the fewest rows up to `right`, which are about equally long."""

    def rows(limit: float) -> list[tuple[float, int]]:
        x, row, places = left, 0, []
        for wide in widths:
            if x > left and x + wide > limit:
                x, row = left, row + 1
            places.append((x, row))
            x += wide + gap
        return places

    last = rows(right)[-1][1]
    tries = (rows(right * share / 20) for share in range(8, 21))
    return next(places for places in tries if places[-1][1] == last)


def phases(svg: Svg, shade: Shade) -> list[Sample]:
    """Return samples for forward, backward, sums and updates."""

    def sample(phase: str) -> Callable[[float, float], None]:
        def draw(x: float, y: float) -> None:
            svg.rect(x, y - 7, SAMPLE, 14, rx=2, fill=fill_of(shade, phase))
            left, right = strips(phase)
            for at in [x] * left + [x + SAMPLE - 7] * right:
                svg.pattern(shade, at, y - 7, 7, 14)
            svg.rect(x, y - 7, SAMPLE, 14, rx=2, fill="none", stroke=shade.hue)

        return draw

    named = (("forward", "forward"), ("backward", "backward"), ("sum, update", "update"))
    return [(text, sample(phase)) for text, phase in named]


def ticks(span: float, length: float, apart: float) -> tuple[list[tuple[float, str]], str]:
    """Return round times in `span` seconds on `length` pixels, about `apart` pixels apart, with labels; and their
    unit."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, scale = next((u, s) for u, s in units if span >= s or u == "ns")
    if not span:
        return [(0.0, "0")], unit
    rough = span * apart / length
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    places = max(0, -math.floor(math.log10(step / scale) + 1e-9))
    moments = [index * step for index in range(int(span / step + 1e-9) + 1)]
    return [(when, f"{when / scale:.{places}f}") for when in moments], unit
