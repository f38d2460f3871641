"""Frame of every picture: title, badge, key figures, legend, ticks of a time axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from . import fonts
from .palette import QUIET, WAIT, Shade, fill_of, strips
from .svg import Svg

MARGIN = 32.0
WIDTH = 1200.0
SAMPLE = 34.0
"""Pixels that the sample of a legend is wide."""

Sample: TypeAlias = tuple[str, Callable[[float, float], None]]
"""An entry of the legend: its meaning, and a function that draws a sample from `x` on around `y`."""


Figure: TypeAlias = tuple[str, str]
"""A key number with its unit, and what it is."""


def heading(
    svg: Svg, title: str, under: str, label: str, figures: Sequence[Figure], samples: Sequence[Sample]
) -> float:
    """Title, the badge that says what the figures are, the figures and the legend; returns where they end."""
    room = svg.width - 2 * MARGIN
    if label:
        wide = fonts.width(label, 12, True) + 36
        x = svg.width - MARGIN - wide
        svg.rect(x, 25, wide, 27, "badge", rx=13.5)
        svg.text(x + wide / 2, 43, label, 12, WAIT, bold=True, anchor="middle")
        svg.text(MARGIN, 46, fonts.fit(title, room - wide - 24, 24, True), 24, bold=True)
    else:
        svg.text(MARGIN, 46, fonts.fit(title, room, 24, True), 24, bold=True)
    svg.text(MARGIN, 68, fonts.fit(under, room, 13), 13, QUIET)
    places = list(_flow([_width(*figure) for figure in figures], 20.0, room, 34.0))
    bottom = 150.0 + 64 * max((row for _, row in places), default=0)
    svg.rect(MARGIN, 86, room, bottom - 86, "lane", rx=6)
    for (quantity, caption), (x, row) in zip(figures, places):
        svg.quantity(MARGIN + x, 116 + 64 * row, quantity)
        svg.text(MARGIN + x, 137 + 64 * row, caption, 12, QUIET)
    rows = 0
    widths = [SAMPLE + 8 + fonts.width(text, 12) for text, _ in samples]
    for (text, draw), (x, row) in zip(samples, _flow(widths, 0.0, room, 26.0)):
        draw(MARGIN + x, bottom + 20 + 22 * row)
        svg.text(MARGIN + x + SAMPLE + 8, bottom + 24 + 22 * row, text)
        rows = row + 1
    return bottom + 22 * rows


def _width(quantity: str, caption: str) -> float:
    number, _, unit = quantity.partition(" ")
    return max(fonts.width(number, 24, True) + 5 + fonts.width(unit, 14), fonts.width(caption, 12))


def _flow(widths: Sequence[float], left: float, right: float, gap: float) -> Iterator[tuple[float, int]]:
    """Position and row of each of some things side by side: what would pass `right` begins another row."""
    x, row = left, 0
    for wide in widths:
        if x > left and x + wide > right:
            x, row = left, row + 1
        yield x, row
        x += wide + gap


def phases(svg: Svg, shade: Shade) -> list[Sample]:
    """Samples of how forward, backward, sums and updates look."""

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
    """Round moments of `span` seconds on `length` pixels, about `apart` pixels from one another, with their labels; and
    the unit of these."""
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
