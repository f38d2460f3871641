"""A writer of SVG: shapes and text with rounded coordinates and escaped strings, so that equal pictures are
equal bytes.

Patterns are drawn as plain lines and not as `<pattern>`, which looks the same in every viewer and
printer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from . import fonts
from .palette import INK, QUIET, Shade

Point = tuple[float, float]

_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """Text for an element or a quoted attribute; what XML cannot hold becomes `�`."""
    text = _REFUSED.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace('"', "&quot;")


def number(value: float) -> str:
    """A coordinate with at most two decimals: `12.5`."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attributes(pairs: dict[str, object]) -> str:
    parts = []
    for name, value in pairs.items():
        if value is None:
            continue
        text = number(value) if isinstance(value, float) else escape(str(value))
        parts.append(f' {name.rstrip("_").replace("_", "-")}="{text}"')
    return "".join(parts)


class Svg:
    """One picture of `width` × `height` pixels; shapes are painted in the order of the calls."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []
        self.origin: Point = (0.0, 0.0)
        """Where the left upper corner of what is seen is."""

    def add(self, tag: str, **attributes: object) -> None:
        """An empty element; `stroke_width` is written `stroke-width`."""
        self.parts.append(f"<{tag}{_attributes(attributes)}/>")

    def rect(self, x: float, y: float, w: float, h: float, **attributes: object) -> None:
        """A rectangle."""
        self.add(
            "rect", x=float(x), y=float(y), width=float(max(w, 0)), height=float(max(h, 0)), **attributes
        )

    def line(self, start: Point, end: Point, **attributes: object) -> None:
        """A straight line."""
        x1, y1, x2, y2 = map(float, (*start, *end))
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)

    def path(self, d: str, **attributes: object) -> None:
        """A path; nothing when `d` is empty."""
        if d:
            self.add("path", d=d, **attributes)

    def polyline(self, points: Sequence[Point], **attributes: object) -> None:
        """A line through `points`, not filled."""
        self.path(trace(points), fill="none", **attributes)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        fill: str = INK,
        *,
        bold: bool = False,
        anchor: str | None = None,
        halo: bool = False,
        mono: bool = False,
    ) -> None:
        """Text whose baseline is at `y`; `halo` paints a white edge under it so that lines behind do not
        touch it."""
        if not text:
            return
        common = _attributes(
            {
                "x": float(x),
                "y": float(y),
                "font_size": number(size),
                "font_weight": "bold" if bold else None,
                "font_family": fonts.MONO if mono else None,
                "text_anchor": anchor,
            }
        )
        if halo:
            edge = (
                'aria-hidden="true" fill="#FFFFFF" stroke="#FFFFFF" stroke-width="5" stroke-linejoin="round"'
            )
            self.parts.append(f"<text{common} {edge}>{escape(text)}</text>")
        self.parts.append(f'<text{common} fill="{fill}">{escape(text)}</text>')

    def number(self, x: float, y: float, number: str, unit: str) -> None:
        """A key number with its unit right behind it in grey."""
        place = _attributes({"x": float(x), "y": float(y), "font_size": "24", "font_weight": "bold"})
        grey = f'<tspan dx="5" font-size="14" font-weight="normal" fill="{QUIET}">{escape(unit)}</tspan>'
        self.parts.append(f'<text{place} fill="{INK}">{escape(number)}{grey}</text>')

    def tooltip(self, text: str) -> None:
        """What viewers show when the group just opened is pointed at."""
        self.parts.append(f"<title>{escape(text)}</title>")

    def open(self, **attributes: object) -> None:
        """Begin a group."""
        self.parts.append(f"<g{_attributes(attributes)}>")

    def close(self) -> None:
        """End the group begun last."""
        self.parts.append("</g>")

    def arrow(self, start: Point, end: Point, color: str, size: float) -> None:
        """The head of an arrow along `start` → `end`, its tip at `end`."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = (dx * dx + dy * dy) ** 0.5
        if not length:
            return
        ux, uy = dx / length, dy / length
        bx, by = end[0] - ux * size, end[1] - uy * size
        half = size * 0.38
        corners = [(bx - uy * half, by + ux * half), end, (bx + uy * half, by - ux * half)]
        self.path(trace(corners) + "Z", fill=color)

    def pattern(
        self, shade: Shade, x: float, y: float, w: float, h: float, *, step: float = 5, opacity: str = "1"
    ) -> None:
        """The pattern of a device over a rectangle."""
        dots = shade.pattern == "dots"
        self.path(
            hatch(shade.pattern, x, y, w, h, step),
            fill="none",
            stroke=shade.hue,
            stroke_width="1.5" if dots else "1.3",
            stroke_linecap="round" if dots else None,
            stroke_opacity=None if opacity == "1" else opacity,
        )

    def swatch(self, shade: Shade, x: float, y: float, w: float, h: float) -> None:
        """A small tile with a device's hue and pattern."""
        self.rect(x, y, w, h, rx="3", fill=shade.fill)
        self.pattern(shade, x + 1, y + 1, w - 2, h - 2)
        self.rect(x, y, w, h, rx="3", fill="none", stroke=shade.hue, stroke_width="1.4")

    def __str__(self) -> str:
        x, y, w, h = map(number, (*self.origin, self.width, self.height))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="{x} {y} {w} {h}" '
            'role="img" '
            f'font-family="{escape(fonts.FAMILY)}" style="font-variant-numeric:tabular-nums">'
            f"<title>{escape(self.title)}</title>"
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="#FFFFFF"/>'
            + "\n".join(self.parts)
            + "</svg>\n"
        )


def trace(points: Iterable[Point]) -> str:
    """Path data through `points`."""
    return "".join(f"{'L' if index else 'M'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points))


def hatch(pattern: str, x: float, y: float, w: float, h: float, step: float = 5) -> str:
    """Path data of a pattern clipped to a rectangle; tiles of one pattern meet without a seam."""
    if w <= 0 or h <= 0:
        return ""
    if pattern == "dots":
        inset = 1.0 if w > 12 else 0.0
        return "".join(
            f"M{number(px)} {number(py)}h.01"
            for py in _multiples(y + 1, y + h - 1, step * 0.8)
            for px in _multiples(x + inset, x + w - inset, step * 0.8)
        )
    parts: list[str] = []
    if pattern == "level":
        parts += [f"M{number(x)} {number(py)}h{number(w)}" for py in _multiples(y, y + h, step * 0.8)]
    if pattern == "upright":
        parts += [f"M{number(px)} {number(y)}v{number(h)}" for px in _multiples(x, x + w, step * 0.8)]
    if pattern in ("slash", "cross"):
        for c in _multiples(x + y, x + w + y + h, step * 1.3):
            low, high = max(x, c - y - h), min(x + w, c - y)
            parts.append(f"M{number(low)} {number(c - low)}L{number(high)} {number(c - high)}")
    if pattern in ("backslash", "cross"):
        for c in _multiples(x - y - h, x + w - y, step * 1.3):
            low, high = max(x, c + y), min(x + w, c + y + h)
            parts.append(f"M{number(low)} {number(low - c)}L{number(high)} {number(high - c)}")
    return "".join(parts)


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = int(low // step) + 1
    return [index * step for index in range(first, int(high // step) + 1) if index * step < high]
