"""The geometry of a placed graph: what is drawn where, in pixels, with nothing of SVG in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.critical_path import Critical
from ...ir.plan import Plan
from ...ir.steps import Placed, Transfer
from ..drawing.frame import MARGIN, WIDTH
from ..drawing.free_space import Rect, Room
from .columns import Column, columns
from .critical import Piece, critical_line, edges
from .fold import Card, fold

LEFT = 200.0
TOP = 92.0
_LEAST, _USUAL, _MOST = 620.0, 860.0, 2200.0
_MOST_ARROWS = 80
_WIDEST_BAND = 1 / 16
"""Share of the plan within which transfers that begin are drawn as one: wider bands would say nothing."""


@dataclass(frozen=True, slots=True)
class Box:
    """A card at its place; one box where a run takes several lanes that are side by side."""

    card: Card
    x: float
    y: float
    w: float
    h: float
    critical: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """One transfer, or several folded into a band from (`x1`, `y1`..`y1_last`) to (`x2`, `y2`..`y2_last`).

    `ready_y` is where the wait for a busy wire began, None without one.
    """

    transfers: tuple[Transfer, ...]
    x1: float
    y1: float
    y1_last: float
    x2: float
    y2: float
    y2_last: float
    critical: bool
    ready_y: float | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all its transfers."""
        return sum(transfer.bytes for transfer in self.transfers)


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a lane has nothing to do, and what ended it."""

    lane: str
    x: float
    y: float
    w: float
    h: float
    start: float
    end: float
    cause: str


@dataclass
class Layout:
    """A placed graph ready to be drawn. `second` are pixels per second below `top`; `room` is what is
    taken; `unnamed` the boxes that no label was found room for; `undrawn` how many transfers have no arrow."""

    plan: Plan
    found: Critical
    cards: dict[str, tuple[Card, ...]]
    columns: dict[str, Column]
    top: float
    height: float
    second: float
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    unnamed: list[Box] = field(default_factory=list)
    undrawn: int = 0
    room: Room = field(default_factory=Room)

    def y(self, when: float) -> float:
        """Where a moment is."""
        return self.top + when * self.second

    @property
    def bottom(self) -> float:
        """Where the plan ends."""
        return self.top + self.height

    @property
    def right(self) -> float:
        """The right edge of the last column."""
        return max(column.right for column in self.columns.values())


def lay_out(plan: Plan) -> Layout:
    """Everything at its place: at most `fold.BUDGET` boxes, a bounded height, small plans at a legible
    scale."""
    found = plan.critical
    cards = fold(plan)
    places = columns(plan, cards, LEFT, WIDTH - MARGIN - LEFT)
    span = max([plan.makespan, *(step.end for step in found.steps)], default=0.0)
    height = _height(cards, span)
    layout = Layout(plan, found, cards, places, TOP, height, height / span if span else 0.0)
    _boxes(layout)
    _arrows(layout)
    layout.pieces = critical_line(found, places, layout.y, layout.second)
    _gaps(layout)
    _take(layout)
    return layout


def _height(cards: dict[str, tuple[Card, ...]], span: float) -> float:
    """Tall enough that most boxes hold a line of text, within bounds."""
    lengths = sorted(
        card.end - card.start for held in cards.values() for card in held if card.end > card.start
    )
    if not lengths or not span:
        return _LEAST
    usual = lengths[len(lengths) * 3 // 10]
    most = max(map(len, cards.values()))
    return min(_MOST, max(_LEAST, min(26.0 / usual * span, max(_USUAL, 52.0 * most))))


def _boxes(layout: Layout) -> None:
    hot = {
        step.run
        for step in map(layout.found.steps.__getitem__, layout.found.path)
        if isinstance(step, Placed)
    }
    for column in layout.columns.values():
        held = [{_key(card) for card in layout.cards[lane]} for lane, _, _ in column.lanes]
        for index, (lane, x, _) in enumerate(column.lanes):
            for card in layout.cards[lane]:
                key = _key(card)
                if index and key in held[index - 1]:
                    continue
                last = next((i for i in range(index, len(held)) if key not in held[i]), len(held)) - 1
                w = column.lanes[last][1] + column.lanes[last][2] - x
                y = layout.y(card.start)
                h = layout.y(card.end) - y
                layout.boxes.append(Box(card, x, y, w, h, any(run in hot for run in card.runs)))


def _key(card: Card) -> tuple[object, ...]:
    """The same for what a run that takes several lanes has in each of them."""
    return card.runs, card.start, card.end


def _arrows(layout: Layout) -> None:
    hot = layout.found.on_path
    numbered = [(index, step) for index, step in enumerate(layout.found.steps) if isinstance(step, Transfer)]
    window, widest = 0.0, layout.plan.makespan * _WIDEST_BAND
    groups = [[pair] for pair in numbered]
    while len(groups) > _MOST_ARROWS and window < widest:
        window = min(widest, max(window * 1.5, layout.plan.makespan / 200))
        groups = _bundles(numbered, window)
    by_bytes = sorted(range(len(groups)), key=lambda g: (-sum(step.bytes for _, step in groups[g]), g))
    kept = set(by_bytes[:_MOST_ARROWS])
    layout.undrawn = sum(len(group) for g, group in enumerate(groups) if g not in kept)
    for group in (group for g, group in enumerate(groups) if g in kept):
        transfers = tuple(step for _, step in group)
        first, last = transfers[0], transfers[-1]
        x1, x2 = edges(layout.columns, first.src, first.dst)
        waited = len(transfers) == 1 and (first.start - first.ready) * layout.second >= 4
        layout.arrows.append(
            Arrow(
                transfers,
                x1,
                layout.y(first.start),
                layout.y(last.start),
                x2,
                layout.y(first.end),
                layout.y(max(step.end for step in transfers)),
                len(group) == 1 and group[0][0] in hot,
                layout.y(first.ready) if waited else None,
            )
        )


def _bundles(numbered: list[tuple[int, Transfer]], window: float) -> list[list[tuple[int, Transfer]]]:
    """Transfers of one direction that begin within `window` of the first of them, together."""
    groups: list[list[tuple[int, Transfer]]] = []
    open_group: dict[tuple[str, str], list[tuple[int, Transfer]]] = {}
    for index, step in numbered:
        group = open_group.get((step.src, step.dst))
        if group is None or step.start - group[0][1].start > window:
            group = open_group[step.src, step.dst] = []
            groups.append(group)
        group.append((index, step))
    return groups


def _gaps(layout: Layout) -> None:
    numbers = {
        (lane, step.start, step.run): i
        for i, step in enumerate(layout.found.steps)
        if isinstance(step, Placed)
        for lane in step.lanes
    }
    for column in layout.columns.values():
        for lane, x, w in column.lanes:
            clock = 0.0
            for card in layout.cards[lane]:
                if card.start > clock:
                    cause = _cause(layout, numbers[lane, card.start, card.runs[0]])
                    _gap(layout, lane, x, w, clock, card.start, cause)
                clock = max(clock, card.end)
            if layout.plan.makespan > clock:
                _gap(layout, lane, x, w, clock, layout.plan.makespan, "done")


def _gap(layout: Layout, lane: str, x: float, w: float, start: float, end: float, cause: str) -> None:
    y = layout.y(start)
    layout.gaps.append(Gap(lane, x, y, w, layout.y(end) - y, start, end, cause))


def _cause(layout: Layout, number: int) -> str:
    """What the step waited for last, in words."""
    step, wait = layout.found.steps[number], layout.found.last[number]
    if wait is None:
        return "waits for its start"
    before = layout.found.steps[wait.step]
    late = step.start - before.end > 0.01 * layout.plan.makespan
    if isinstance(before, Transfer):
        return f"waits for {layout.plan.words.value(before.value)} of {before.src}"
    if late or wait.kind == "lane":
        return "waits for its turn"
    return f"waits for {layout.plan.words.run(before.run)}" + (
        f" of {before.device}" if before.device != _device(step) else ""
    )


def _device(step: Placed | Transfer) -> str:
    """The device a step works on: a run's own, a transfer's destination."""
    return step.device if isinstance(step, Placed) else step.dst


def _take(layout: Layout) -> None:
    layout.room.take_line((0.0, layout.bottom), (layout.right, layout.bottom))
    for arrow in layout.arrows:
        several = len(arrow.transfers) > 1
        layout.room.take_line((arrow.x1, arrow.y1), (arrow.x2, arrow.y2), under=several)
        if several:
            layout.room.take_line((arrow.x1, arrow.y1_last), (arrow.x2, arrow.y2_last), under=True)
            middle = ((arrow.y1 + arrow.y1_last) / 2, (arrow.y2 + arrow.y2_last) / 2)
            layout.room.take_line((arrow.x1, middle[0]), (arrow.x2, middle[1]))
        if arrow.ready_y is not None:
            layout.room.take_line((arrow.x1, arrow.ready_y), (arrow.x1, arrow.y1))
    for piece in layout.pieces:
        for start, end in zip(piece.points, piece.points[1:]):
            layout.room.take_line(start, end)
    for box in layout.boxes:
        layout.room.take(Rect(box.x, box.y, box.w, max(box.h, 1.0)))
