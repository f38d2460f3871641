"""Columns of devices and lanes, in an order in which transfers join neighbours and as wide as their use asks; and the
critical path as one unbroken line across them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise, permutations
from typing import TypeAlias

from ...ir.critical_path import Critical
from ...ir.plan import Plan
from ...ir.timeline import Placed, Step, Transfer
from ..drawing.design import Shade, shades
from ..drawing.free_space import Point
from .fold import Card

_MOST_TRIED = 6
"""Devices whose columns are tried in every order."""
_TIGHT = 12.0
"""Copies that follow one another in fewer pixels are one line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A device from `x` on, `w` wide; `lanes` are (lane, x, w) for those that compute."""

    device: str
    x: float
    w: float
    lanes: tuple[tuple[str, float, float], ...]
    shade: Shade

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.w


Piece: TypeAlias = tuple[str, tuple[Point, ...]]
"""A part of the critical path: `run` (of clusters), `copy` (its end is an arrow) or `bus`, drawn dotted; its points."""


def columns(plan: Plan, cards: dict[str, tuple[Card, ...]], left: float, room: float) -> dict[str, Column]:
    """The columns of all devices from `left` on, in the order they are drawn, stretched towards `room`
    in all."""
    machine = plan.costed.machine
    look = shades((device.name, device.traits.host) for device in machine.devices)
    touched = {device for t in plan.transfers for device in (t.src, t.dst)} | {
        lane.rsplit("/", 1)[0] for lane in cards
    }
    order = _order(plan, touched)
    many = len(touched) > 4
    wide, gap = (176.0, 156.0) if many else (206.0, 176.0)
    found: dict[str, Column] = {}
    lanes = {name: [lane for lane in machine.device[name].compute_lanes if lane in cards] for name in order}
    each = {name: (140.0, wide)[len(lanes[name])] if len(lanes[name]) < 2 else 142.0 for name in order}
    widths = {name: each[name] * max(1, len(lanes[name])) if name in touched else 128.0 for name in order}
    gaps = [gap if one in touched and other in touched else 40.0 for one, other in pairwise(order)]
    stretch = min(1.35, max(1.0, room / (sum(widths.values()) + sum(gaps))))
    x = left
    for name, after in zip(order, (*gaps, 0.0)):
        w = each[name] * stretch
        places = tuple((lane, x + index * w, w) for index, lane in enumerate(lanes[name]))
        found[name] = Column(name, x, widths[name] * stretch, places, look[name])
        x += (widths[name] + after) * stretch
    return found


def _order(plan: Plan, touched: set[str]) -> list[str]:
    """Devices so that transfers skip as few columns as can be; then the CPU in the middle of the
    accelerators."""
    machine = plan.costed.machine
    cpus = [device.name for device in machine.devices if device.traits.host]
    others = [device.name for device in machine.devices if not device.traits.host]
    middle = (len(others) + 1) // 2
    usual = [*others[:middle], *cpus, *others[middle:]]
    busy, idle = [name for name in usual if name in touched], [name for name in usual if name not in touched]
    traffic = Counter((t.src, t.dst) for t in plan.transfers)
    if len(busy) <= _MOST_TRIED:
        tries = [list(order) for order in permutations(busy)]
    else:
        rest = [name for name in busy if name not in cpus]
        here = [name for name in busy if name in cpus]
        tries = [busy, *([*rest[:cut], *here, *rest[cut:]] for cut in range(len(rest) + 1))]

    def cost(order: list[str]) -> tuple[int, int]:
        at = {name: position for position, name in enumerate(order)}
        skipped = sum(count * max(0, abs(at[src] - at[dst]) - 1) for (src, dst), count in traffic.items())
        return skipped, sum(abs(at[name] - position) for position, name in enumerate(busy))

    return [*min(tries, key=cost), *idle]


def edges(columns: dict[str, Column], src: str, dst: str) -> tuple[float, float]:
    """The edges, in pixels, at which a transfer leaves the column of `src` and reaches that of `dst`."""
    one, other = columns[src], columns[dst]
    return (one.right, other.x) if one.x < other.x else (one.x, other.right)


def critical_line(
    found: Critical, columns: dict[str, Column], y: Callable[[float], float], second: float
) -> list[Piece]:
    """The pieces of the critical path in order; `y` is where a moment is, `second` pixels per second."""
    lanes = {lane: (x, x + w) for column in columns.values() for lane, x, w in column.lanes}
    stretches = _stretches(found, _TIGHT / second if second else 0.0)
    pieces: list[Piece] = []
    here: tuple[Point, str] | None = None
    for (first, last), (after, _) in zip(stretches, [*stretches[1:], (None, None)]):
        start, end = y(first.start), y(last.end)
        if isinstance(first, Transfer):
            enter, leave = edges(columns, first.src, first.dst)
            kind, source, target = "copy", first.src, first.dst
        else:
            left, right = lanes[first.lane]
            goal = edges(columns, after.src, after.dst)[0] if isinstance(after, Transfer) else right
            goal = here[0][0] if here else goal
            enter = leave = left if abs(goal - left) < abs(goal - right) else right
            kind, source, target = "run", first.device, first.device
        if here:
            (x, before), device = here
            by_bus = device != source
            corner = (x, start) if by_bus and kind == "copy" else (enter, before)
            pieces.append(("bus" if by_bus else "run", _path((x, before), corner, (enter, start))))
        pieces.append((kind, ((enter, start), (leave, end))))
        here = (leave, end), target
    return _joined(pieces)


def _stretches(found: Critical, tight: float) -> list[tuple[Step, Step]]:
    """First and last step of each stretch: clusters of one lane, or copies of one direction less than `tight` seconds
    each."""
    done: list[tuple[Step, Step]] = []
    for step in map(found.steps.__getitem__, found.path):
        if done and _continues(done[-1][1], step, tight):
            done[-1] = (done[-1][0], step)
        else:
            done.append((step, step))
    return done


def _continues(before: Step, step: Step, tight: float) -> bool:
    if isinstance(before, Placed) or isinstance(step, Placed):
        return before.lane == step.lane
    same_way = (step.src, step.dst) == (before.src, before.dst)
    return same_way and max(step.start, before.end) - before.start < tight


def _path(*points: Point) -> tuple[Point, ...]:
    return tuple(point for point, _ in groupby(points))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring `run` pieces as one line, so that corners meet; pieces of one point dropped."""
    done: list[Piece] = []
    for kind, points in pieces:
        if len(points) < 2:
            continue
        if done and kind == done[-1][0] == "run" and done[-1][1][-1] == points[0]:
            done[-1] = "run", _path(*done[-1][1], *points[1:])
        else:
            done.append((kind, points))
    return done
