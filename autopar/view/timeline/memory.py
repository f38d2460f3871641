"""The memory of one device under a timeline: a step curve, its peak and its cap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ...ir.timeline import Memory
from ...text.tables import free, size
from ..drawing import fonts
from ..drawing.frame import MARGIN
from ..drawing.free_space import Label, Point
from ..drawing.palette import INK, QUIET, Shade
from ..drawing.svg import Svg, trace
from .bars import LEFT, RIGHT, Axis

MEMORY_HIGH = 136.0
_CURVE = 100.0


def memory_row(
    svg: Svg, memory: Memory, planned: Memory | None, shade: Shade, axis: Axis, y: float, end: float
) -> None:
    """Draw the curve of `memory` from `y` down; `planned` is the predicted one, drawn as a thin line over it."""
    cap = memory.cap
    close = cap if cap is not None and memory.peak >= 0.35 * cap else 0
    most = max(memory.peak, planned.peak if planned else 0, close) or 1
    bottom = y + _CURVE

    def level(count: float) -> float:
        return bottom - count / most * (_CURVE - 14)

    axis.lane(svg, y, _CURVE)
    points = corners(memory, axis.x, level, min(RIGHT, axis.x(end)))
    svg.path(trace([*points, (points[-1][0], bottom), (points[0][0], bottom)]) + "Z", fill=shade.fill)
    for (x1, y1), (x2, _) in zip(points[::2], points[1::2]):
        svg.pattern(shade, x1, y1, x2 - x1, bottom - y1, stroke_opacity=0.5)
    svg.path(trace(points), fill="none", stroke=shade.hue, stroke_width=2.2, stroke_linejoin="round")
    if planned and planned.steps:
        last = max(when for when, _ in planned.steps)
        svg.path(trace(corners(planned, axis.x, level, min(RIGHT, axis.x(last)))), "planned")
    for share in (0.0, 0.5) if close else (0.0, 0.5, 1.0):
        text = size(most * share) if share else "0"
        svg.text(LEFT - 10, level(most * share) + 4, text, 11, QUIET, anchor="end")
    if close:
        at = level(close)
        axis.room.take_line((LEFT, at), (RIGHT, at))
        svg.line((LEFT, at), (RIGHT, at), "cap")
        svg.text(LEFT - 10, at + 4, f"cap {size(close)}", 11, INK, bold=True, anchor="end")
    svg.swatch(shade, MARGIN, y + 34, 22, 20)
    svg.text(MARGIN + 30, y + 43, fonts.fit(memory.device, 86, 12, True), 12, bold=True)
    svg.text(MARGIN + 30, y + 58, "memory", 11.5, QUIET)
    _peak(svg, memory, shade, axis, level, points)
    rows = [("peak", size(memory.peak)), ("cap", size(cap) if cap else "none")]
    rows += [("free", free(1 - memory.peak / cap))] if cap else []
    rows += [("planned", size(planned.peak))] if planned else []
    for index, (what, text) in enumerate(rows):
        svg.text(RIGHT + 30, y + 18 + index * 21, what, 12, QUIET)
        svg.text(RIGHT + 142, y + 18 + index * 21, text, 12)
    svg.line((LEFT, bottom), (RIGHT, bottom), "grid")


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
    when = next(when for when, count in memory.steps if count == memory.peak)
    x, y = axis.x(when), level(memory.peak)
    for start, end in pairwise(points):
        axis.room.take_line(start, end)
    svg.circle(x, y, 4.5, fill="#FFFFFF", stroke=shade.hue, stroke_width=2)
    text = f"peak {size(memory.peak)}"
    places = [(dx, dy) for dx in (-10.0, 10.0, -70.0, 70.0, -140.0) for dy in (-7.0, 4.0, 17.0, 30.0)]
    labels = [
        Label(x + dx, y + dy, text, 11.5, anchor="end" if dx < 0 else "start", halo=True) for dx, dy in places
    ]
    inside = [[label] for label in labels if LEFT + 4 < label.rect.x < RIGHT - label.rect.w]
    for label in axis.room.first(inside, pad=2):
        svg.label(label)
