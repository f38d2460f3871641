"""The geometry of a placed graph in pixels, independent of SVG.

Columns of devices and lanes are ordered so that transfers join neighbours, and as wide as needed; the critical path is
one unbroken line across them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from ...ir.plan import Plan
from ...ir.timeline import Transfer
from ..drawing.design import Names, Shade, shades
from ..drawing.free_space import FreeSpace, Point, Rect
from ..drawing.svg import MARGIN, WIDTH
from ..report.reasons import sections, waited
from .fold import Card, fold

LEFT = 186.0
TOP = 92.0
_LEAST, _USUAL, _MOST = 620.0, 860.0, 2200.0
_NARROWEST, _WIDEST = 0.8, 2.4
"""Least and most by which columns are stretched to fill a picture."""
_MOST_ARROWS = 80
"""Limit on the transfers drawn, on the critical path and beside it."""
_LEGIBLE = 11.0
"""Pixels below which a box has no name."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A device from `x` on, `w` wide; `lanes` are (lane, x, w) of its compute lanes."""

    device: str
    x: float
    w: float
    lanes: tuple[tuple[str, float, float], ...]
    shade: Shade

    @property
    def right(self) -> float:
        """Right edge in pixels."""
        return self.x + self.w


Piece: TypeAlias = tuple[str, tuple[Point, ...]]
"""A piece of the critical path: `run` (of clusters), `copy` (ends in an arrow) or `bus` (dotted), and its points."""


Gap: TypeAlias = tuple[Rect, float, str]
"""The place of an idle time of a lane, its seconds, and what ended it; empty at the end of the plan."""


@dataclass(frozen=True, slots=True)
class Box(Rect):
    """A card with its place in pixels."""

    card: Card
    critical: bool

    @property
    def named(self) -> bool:
        """True if it is high enough for a name."""
        return self.h >= _LEGIBLE


@dataclass(frozen=True, slots=True)
class Arrow:
    """A transfer, drawn from `start` to `end`. `ready_y`: start of its wait for a busy bus; None if there is none."""

    transfer: Transfer
    start: Point
    end: Point
    critical: bool
    ready_y: float | None = None


@dataclass
class Layout:
    """A placed graph ready to draw.

    columns: of each device, from left to right.
    second: pixels per second below `top`.
    space: places taken by boxes, lines and labels.
    """

    plan: Plan
    cards: dict[str, tuple[Card, ...]]
    columns: dict[str, _Column]
    top: float
    height: float
    second: float
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    space: FreeSpace = field(default_factory=FreeSpace)

    @cached_property
    def names(self) -> Names:
        """The names of boxes and arrows."""
        words = self.plan.words.value
        return Names([box.card.title for box in self.boxes] + [words(a.transfer.value) for a in self.arrows])

    def y(self, when: float) -> float:
        """Return the vertical position of a time, in pixels."""
        return self.top + when * self.second

    @property
    def unnamed(self) -> list[Box]:
        """Boxes that are too low for a name."""
        return [box for box in self.boxes if not box.named]

    @property
    def bottom(self) -> float:
        """Vertical position of the end of the plan, in pixels."""
        return self.top + self.height

    @property
    def right(self) -> float:
        """Right edge of the last column, in pixels."""
        return max(column.right for column in self.columns.values())


def lay_out(plan: Plan, width: float = WIDTH) -> Layout:
    """Lay out a plan, `width` pixels wide or wider if it has many lanes: at most `fold.BUDGET` boxes, a bounded height,
    small plans at a legible scale."""
    cards = fold(plan)
    span = max([plan.makespan, *(step.end for step in plan.steps)])
    height = _height(cards, span)
    layout = Layout(plan, cards, _columns(plan, cards, width), TOP, height, height / span if span else 0.0)
    _boxes(layout)
    _arrows(layout)
    layout.pieces = _critical_line(layout)
    _gaps(layout)
    _take(layout)
    return layout


def _height(cards: dict[str, tuple[Card, ...]], span: float) -> float:
    """Return a height at which most boxes hold a line of text, within bounds."""
    lengths = sorted(card.end - card.start for lane in cards.values() for card in lane)
    lengths = [length for length in lengths if length > 0]
    if not lengths or not span:
        return _LEAST
    usual = lengths[len(lengths) * 3 // 10]
    most = max(map(len, cards.values()))
    return min(_MOST, max(_LEAST, min(26.0 / usual * span, max(_USUAL, 52.0 * most))))


def _boxes(layout: Layout) -> None:
    number, hot = layout.plan.critical.number, layout.plan.critical.on_path
    for column in layout.columns.values():
        for lane, x, w in column.lanes:
            for card in layout.cards[lane]:
                y = layout.y(card.start)
                critical = any(number[cluster] in hot for cluster in card.clusters)
                layout.boxes.append(Box(x, y, w, layout.y(card.end) - y, card, critical))


def _arrows(layout: Layout) -> None:
    """Add arrows of the transfers of the most bytes, on the critical path and beside it, in the order of their
    starts."""
    steps, on_path = layout.plan.steps, set(layout.plan.critical.path)
    largest = sorted((-step.bytes, number) for number, step in enumerate(steps) if isinstance(step, Transfer))
    hot = [number for _, number in largest if number in on_path]
    rest = [number for _, number in largest if number not in on_path]
    for number, step in ((n, steps[n]) for n in sorted(hot[:_MOST_ARROWS] + rest[:_MOST_ARROWS])):
        assert isinstance(step, Transfer)
        x1, x2 = _edges(layout.columns, step.src, step.dst)
        start, end = (x1, layout.y(step.start)), (x2, layout.y(step.end))
        ready = layout.y(step.ready) if (step.start - step.ready) * layout.second >= 4 else None
        layout.arrows.append(Arrow(step, start, end, number in on_path, ready))


def _gaps(layout: Layout) -> None:
    plan = layout.plan
    for column in layout.columns.values():
        for lane, x, w in column.lanes:
            clock = 0.0
            ends = [(card.start, card.end, card.clusters[0]) for card in layout.cards[lane]]
            for start, end, first in (*ends, (plan.makespan, 0.0, "")):
                if start > clock:
                    y = layout.y(clock)
                    cause = waited(plan, plan.critical.number[first]) if first else ""
                    layout.gaps.append((Rect(x, y, w, layout.y(start) - y), start - clock, cause))
                clock = max(clock, end)


def _take(layout: Layout) -> None:
    layout.space.take(Rect(LEFT, layout.bottom - 1, layout.right - LEFT, 200.0))
    for arrow in layout.arrows:
        layout.space.take_line(arrow.start, arrow.end)
        if arrow.ready_y is not None:
            layout.space.take_line((arrow.start[0], arrow.ready_y), arrow.start)
    for _, points in layout.pieces:
        for start, end in pairwise(points):
            layout.space.take_line(start, end)
    for box in layout.boxes:
        layout.space.take(Rect(box.x, box.y, box.w, max(box.h, 1.0)))


def _columns(plan: Plan, cards: dict[str, tuple[Card, ...]], width: float) -> dict[str, _Column]:
    """Return the columns of all devices in drawing order, stretched to the width of a picture."""
    machine = plan.costed.machine
    look = shades((device.name, device.traits.host) for device in machine.devices)
    touched = {lane.rsplit("/", 1)[0] for lane in cards}
    touched |= {device for t in plan.transfers for device in (t.src, t.dst)}
    order = _order(plan, touched)
    lanes = {name: [lane for lane in machine.device[name].compute_lanes if lane in cards] for name in order}
    each = {name: (134.0, 200.0, 142.0)[min(2, len(lanes[name]))] for name in order}
    gaps = [170.0 if one in touched and other in touched else 40.0 for one, other in pairwise(order)]
    whole = sum(each[name] * max(1, len(lanes[name])) for name in order) + sum(gaps)
    stretch = min(_WIDEST, max(_NARROWEST, (width - MARGIN - LEFT) / whole))
    x, columns = LEFT, {}
    for name, after in zip(order, (*gaps, 0.0)):
        w = each[name] * stretch
        places = tuple((lane, x + index * w, w) for index, lane in enumerate(lanes[name]))
        columns[name] = _Column(name, x, w * max(1, len(places)), places, look[name])
        x = columns[name].right + after * stretch
    return columns


def _order(plan: Plan, touched: set[str]) -> list[str]:
    """Order the devices with the CPUs where transfers skip the fewest columns, rather in the middle; idle ones last."""
    devices = plan.costed.machine.devices
    cpus = [device.name for device in devices if device.traits.host and device.name in touched]
    rest = [device.name for device in devices if not device.traits.host and device.name in touched]
    tries = [(cut, [*rest[:cut], *cpus, *rest[cut:]]) for cut in range(len(rest) + 1)]

    def cost(each: tuple[int, list[str]]) -> tuple[int, int]:
        at = {name: position for position, name in enumerate(each[1])}
        return sum(abs(at[t.src] - at[t.dst]) for t in plan.transfers), abs(2 * each[0] - len(rest))

    return [*min(tries, key=cost)[1], *(device.name for device in devices if device.name not in touched)]


def _edges(columns: dict[str, _Column], src: str, dst: str) -> tuple[float, float]:
    """Return the edges, in pixels, at which a transfer leaves the column of `src` and reaches that of `dst`."""
    one, other = columns[src], columns[dst]
    return (one.right, other.x) if one.x < other.x else (one.x, other.right)


def _critical_line(layout: Layout) -> list[Piece]:
    """Return the pieces of the critical path in order, each from the end of the one before it."""
    columns = layout.columns
    lanes = {lane: (x, x + w) for column in columns.values() for lane, x, w in column.lanes}
    runs = [
        [layout.plan.steps[number] for number in part.steps] for part in sections(layout.plan) if part.steps
    ]
    pieces: list[Piece] = []
    here: tuple[Point, str] | None = None
    for run, later in zip(runs, [*runs[1:], []]):
        first, start, end = run[0], layout.y(run[0].start), layout.y(run[-1].end)
        if isinstance(first, Transfer):
            enter, leave = _edges(columns, first.src, first.dst)
            kind, source, target = "copy", first.src, first.dst
        else:
            left, right = lanes[first.lane]
            copy = later[0] if later else None
            goal = _edges(columns, copy.src, copy.dst)[0] if isinstance(copy, Transfer) else right
            goal = here[0][0] if here else goal
            enter = leave = left if abs(goal - left) < abs(goal - right) else right
            kind, source, target = "run", first.device, first.device
        if here:
            (x, y), device = here
            by_bus = device != source
            corner = (x, start) if by_bus and kind == "copy" else (enter, y)
            pieces.append(("bus" if by_bus else "run", ((x, y), corner, (enter, start))))
        pieces.append((kind, ((enter, start), (leave, end))))
        here = (leave, end), target
    return [(kind, points) for kind, points in pieces if len(set(points)) > 1]
