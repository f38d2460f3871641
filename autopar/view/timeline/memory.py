"""The memory of one device under a timeline: a step curve, its peak and its cap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ...ir.timeline import Memory
from ...text.tables import free, size
from ..drawing import fonts
from ..drawing.palette import GRID, INK, LANE, QUIET, Shade
from ..drawing.svg import Point, Svg, trace
from ..placed.free_space import Label
from ..placed.layout import MARGIN
from .lanes import LEFT, RIGHT, Axis

MEMORY_HIGH = 136.0
_CURVE = 100.0


def memory_row(
    svg: Svg,
    memory: Memory,
    planned: Memory | None,
    shade: Shade,
    axis: Axis,
    y: float,
    end: float,
) -> None:
    """Draw the curve of `memory` from `y` down; `planned` is the predicted one, drawn as a thin line
    over it."""
    left, right, x_of = LEFT, RIGHT, axis.x
    cap = memory.cap
    close = cap is not None and memory.peak >= 0.35 * cap
    most = max(memory.peak, planned.peak if planned else 0, cap or 0 if close else 0) or 1
    bottom = y + _CURVE

    def level(count: float) -> float:
        return bottom - count / most * (_CURVE - 14)

    svg.rect(left, y, right - left, _CURVE, fill=LANE)
    points = corners(memory, x_of, level, min(right, x_of(end)))
    svg.path(trace([*points, (points[-1][0], bottom), (points[0][0], bottom)]) + "Z", fill=shade.fill)
    for (x1, y1), (x2, _) in zip(points[::2], points[1::2]):
        svg.pattern(shade, x1, y1, x2 - x1, bottom - y1, opacity="0.5")
    svg.polyline(points, stroke=shade.hue, stroke_width="2.2", stroke_linejoin="round")
    if planned and planned.steps:
        last = max(when for when, _ in planned.steps)
        curve = corners(planned, x_of, level, min(right, x_of(last)))
        svg.polyline(curve, stroke=INK, stroke_width="1", stroke_dasharray="3 3", stroke_opacity="0.6")
    for share in (0.0, 0.5, 1.0):
        at = level(most * share)
        if share < 1 or not close:
            svg.text(left - 10, at + 4, size(most * share) if share else "0", 11, QUIET, anchor="end")
    if close and cap:
        at = level(cap)
        axis.room.take_line((left, at), (right, at))
        svg.line((left, at), (right, at), stroke=INK, stroke_width="1.4", stroke_dasharray="5 3")
        svg.text(left - 10, at + 4, f"cap {size(cap)}", 11, INK, bold=True, anchor="end")
    svg.swatch(shade, MARGIN, y + 34, 22, 20)
    svg.text(MARGIN + 30, y + 43, fonts.fit(memory.device, 86, 12, True), 12, bold=True)
    svg.text(MARGIN + 30, y + 58, "memory", 11.5, QUIET)
    _peak(svg, memory, shade, axis, level, points)
    rows = [("peak", size(memory.peak)), ("cap", size(cap) if cap else "none")]
    if cap:
        rows.append(("free", free(1 - memory.peak / cap)))
    if planned:
        rows.append(("planned", size(planned.peak)))
    for index, (what, text) in enumerate(rows):
        svg.text(right + 30, y + 18 + index * 21, what, 12, QUIET)
        svg.text(right + 142, y + 18 + index * 21, text, 12)
    svg.line((left, bottom), (right, bottom), stroke=GRID, stroke_width="1")


def corners(
    memory: Memory, x_of: Callable[[float], float], level: Callable[[float], float], right: float
) -> list[Point]:
    """Both ends of each level of a step curve; of those on one pixel the highest and the last."""
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


def _peak(
    svg: Svg, memory: Memory, shade: Shade, axis: Axis, level: Callable[[float], float], points: list[Point]
) -> None:
    """A ring at the peak, its size beside it where nothing is in the way."""
    peak = memory.peak
    when = next(when for when, count in memory.steps if count == peak)
    x, at = axis.x(when), level(peak)
    for start, end in pairwise(points):
        axis.room.take_line(start, end)
    text = f"peak {size(peak)}"
    wide = fonts.width(text, 11.5)
    for dx in (-10.0, 10.0, -70.0, 70.0, -140.0):
        for dy in (-7.0, 4.0, 17.0, 30.0):
            left = x + dx if dx > 0 else x + dx - wide
            label = Label(left, at + dy, text, 11.5)
            if LEFT + 4 < left < RIGHT - wide and axis.room.place([label], pad=2):
                svg.text(left, at + dy, text, 11.5, halo=True)
                svg.add(
                    "circle",
                    cx=float(x),
                    cy=float(at),
                    r="4.5",
                    fill="#FFFFFF",
                    stroke=shade.hue,
                    stroke_width="2",
                )
                return
    svg.add("circle", cx=float(x), cy=float(at), r="4.5", fill="#FFFFFF", stroke=shade.hue, stroke_width="2")
