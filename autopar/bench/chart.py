"""Rows of contests as a picture: a bar of seconds ÷ eager's for each rival, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ..system.text import seconds
from ..view.drawing import fonts
from ..view.drawing.frame import MARGIN
from ..view.drawing.palette import INK, QUIET, shades
from ..view.drawing.svg import Svg
from ..view.save import kind_of, png
from .rivals import EAGER
from .row import Row

WIDTH, LINE = 960.0, 20.0
LEFT, RIGHT = 150.0, 250.0
"""Pixels for names at the left and figures at the right."""


def suffix(path: Path) -> str:
    """The kind of picture that a path asks for; AutoparError for one that is none."""
    return kind_of(path, (".svg", ".png"), "a chart")


def save(rows: Sequence[Row], path: Path, machine: str) -> None:
    """Write the chart as `.svg` or `.png`. Raises AutoparError for another suffix, or a `.png` without cairosvg."""
    kind, text = suffix(path), chart(rows, machine)
    path.write_bytes(png(text) if kind == ".png" else text.encode())


def chart(rows: Sequence[Row], machine: str) -> str:
    """The picture of all rows, from the top down, as SVG."""
    drawn = 104 + sum(LINE * (len(row.outcomes) + 2.2) for row in rows)
    svg = Svg(WIDTH, drawn + 16, f"Seconds ÷ {EAGER}")
    room = WIDTH - 2 * MARGIN
    svg.text(MARGIN, 46, f"Seconds ÷ {EAGER}", 24, bold=True)
    svg.text(MARGIN, 68, fonts.fit(f"shorter is faster; whiskers: quartiles; {machine}", room, 13), 13, QUIET)
    ratios = [row.ratio(one.name) for row in rows for one in row.outcomes if one.blocks]
    low, high = math.log2(min([0.5, *ratios]) / 1.1), math.log2(max([2.0, *ratios]) * 1.1)
    start, length = MARGIN + LEFT, room - LEFT - RIGHT

    def at(ratio: float) -> float:
        return start + length * (math.log2(ratio) - low) / (high - low)

    for power in range(math.ceil(low), math.floor(high) + 1):
        x = at(2.0**power)
        svg.line((x, 96), (x, drawn), "end" if power == 0 else "grid")
        svg.text(x, 90, f"{2.0**power:g}", 11, QUIET, anchor="middle")
    y = 104.0
    for row in rows:
        svg.text(MARGIN, y + 14, fonts.fit(row.title, LEFT + length, 13, True), 13, bold=True)
        y += LINE * 1.2
        for index in range(len(row.outcomes)):
            _bar(svg, row, index, y, at)
            y += LINE
        y += LINE
    return str(svg)


def _bar(svg: Svg, row: Row, index: int, y: float, at: Callable[[float], float]) -> None:
    own, other = shades([("own", False), ("other", True)]).values()
    one = row.outcomes[index]
    start, end = MARGIN + LEFT, svg.width - MARGIN - RIGHT
    svg.text(start - 8, y + 14, one.name, 12, INK, bold=one.name.startswith("autopar"), anchor="end")
    if not one.blocks:
        svg.text(start + 4, y + 14, fonts.fit(one.remark(), end + RIGHT - start - 4, 11), 11, QUIET)
        return
    ratio, shade = row.ratio(one.name), own if one.name.startswith("autopar") else other
    svg.rect(start, y + 3, at(ratio) - start, LINE - 6, fill=shade.fill, stroke=shade.hue)
    ends = [at(quartile / row.outcomes[0].median) for quartile in one.quartiles]
    low, high = (min(max(x, start), end) for x in ends)
    svg.line((low, y + LINE / 2), (high, y + LINE / 2), "end")
    note = " ".join((f"{ratio:.3f}", f"({seconds(one.median)})", one.remark()))
    svg.text(end + 8, y + 14, fonts.fit(note, RIGHT - 8, 11), 11, QUIET)
