"""Labels of a placed graph. A box has its name inside or, if it is too low, none; other labels go where nothing else
is, or are omitted. The page has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from ...ir.display_names import operator
from ...system.text import percent, seconds, size
from ..drawing import design
from ..drawing.design import INK, LANE, PAPER, QUIET, WAIT, strips
from ..drawing.free_space import Label, Rect
from ..report.reasons import module_of
from .layout import Arrow, Box, Layout

_STRIP, _PAD, _APART = 10.0, 9.0, 2.0
"""Pixels of the pattern at the edge of a box, from there to a label, and from a label to lines over the box."""
_STEP = 6.0
"""Pixels between the heights that are tried for a label in a box."""


def box_labels(layout: Layout, box: Box) -> list[Label]:
    """Return name and duration, with more lines if the box is high enough; none if it is too low for text.

    They are where no line crosses the box, or else in its middle, over the lines.
    """
    if not box.named:
        return []
    card, bold, two = box.card, box.critical, box.h >= 40
    shown = 13.0 if box.h >= 18 else 11.0
    strip_left, strip_right = strips(card.phase)
    left, right = box.x + _STRIP * strip_left + _PAD, box.x + box.w - _STRIP * strip_right - _PAD
    time, second = seconds(card.busy), _second_line(layout, box) if two else ""
    name = layout.names.fit(card.title, right - left - design.width(time, shown, bold) - 10, shown, bold)
    wider = layout.names.fit(card.title, right - left, shown, bold)
    if name != wider and (two or "…" in name or len(name) < 8):
        both = " · ".join(filter(None, (time, second))) if two else ""
        # Of repeated blocks, the time of each says more than their sum.
        second = second if card.copies and design.width(both, 12) > right - left else both
        name, time = wider, ""
    while ", " in second and design.width(second, 12) > right - left:
        second = second.rpartition(", ")[0]
    second = layout.names.fit(second, right - left, 12)
    third = layout.names.fit(card.module, right - left, 12) if card.copies and box.h >= 66 else ""
    fill = design.fill_of(layout.columns[card.device].shade, card.phase)

    def lines(middle: float) -> list[Label]:
        base = middle - 3.5 if second else middle + shown * 0.36
        labels = (
            Label(left, base, name, shown, INK, bold),
            Label(right, base, time, shown, INK, bold, "end"),
            Label(left, middle + 13, second, 12, QUIET),
            Label(left, middle + 28, third, 12, QUIET),
        )
        return [label for label in labels if label.text]

    away = range(int(max(0.0, box.h / 2 - (35.0 if third else 20.0 if second else 8.0)) / _STEP) + 1)
    tries = [lines(box.y + box.h / 2 + sign * _STEP * n) for n, sign in product(away, (1, -1))]
    free = (
        labels for labels in tries if all(layout.space.unlined(each.rect.grown(_APART)) for each in labels)
    )
    return next(free, [replace(label, ground=fill) for label in tries[0]])


def _second_line(layout: Layout, box: Box) -> str:
    card = box.card
    if card.copies:
        return f"{len(card.copies)} × {seconds(card.busy / len(card.copies))}"
    share = card.busy / (card.end - card.start) if card.end > card.start else 1.0
    parts = [f"{len(card.clusters)} clusters"]
    if len(card.clusters) == 1:
        tasks = layout.plan.costed.cluster[card.clusters[0]].tasks
        module = module_of(layout.plan, card.clusters[0])
        heavy = layout.plan.costed.graph.task.get(card.clusters[0])
        called = operator(heavy) if heavy and module else ""
        parts = [module if module and module not in card.title else called, heavy.part if heavy else ""]
        parts += [f"{len(tasks)} tasks"] if len(tasks) > 1 else []
    parts += [f"busy {percent(share)}"] if share < 0.985 else []
    return ", ".join(filter(None, parts))


def free_labels(layout: Layout) -> list[Label]:
    """Return the labels outside of boxes, important ones first: transfers, waits, idle times."""
    order = sorted(layout.arrows, key=lambda arrow: (not arrow.critical, -arrow.transfer.bytes))
    places = [_arrow_places(layout, arrow) for arrow in order]
    places += [_wait_places(arrow) for arrow in order]
    places += [_gap_places(layout.names, *gap) for gap in sorted(layout.gaps, key=lambda gap: -gap[0].h)]
    return [label for each in places for label in layout.space.first(each, pad=3.0)]


def _arrow_places(layout: Layout, arrow: Arrow) -> Iterator[list[Label]]:
    """Yield candidate labels of an arrow: name over bytes and time, above its end first; then the name alone."""
    rightward = arrow.end[0] > arrow.start[0]
    ends = [(*_corridor(layout, arrow, at_end), rightward == at_end) for at_end in (True, False)]
    widest = min(high - low for low, high, _ in ends) - 14
    moved, bold, apart = arrow.transfer, arrow.critical, 7.0 if arrow.critical else 4.0
    name, figures = (
        layout.plan.words.value(moved.value),
        f"{size(moved.bytes)} · {seconds(moved.end - moved.start)}",
    )
    lines = [
        Label(0, 0, layout.names.fit(name, widest, 12, bold), 12, INK, bold, ground=PAPER),
        Label(0, 0, design.fit(figures, widest, 11.5), 11.5, INK if bold else QUIET, ground=PAPER),
    ]
    for shown, above, (low, high, right), inner in product(
        (lines, lines[:1]), (True, False), ends, (False, True)
    ):
        wide, tall = max(line.rect.w for line in shown), 14.0 * len(shown)
        x = high - 8 - wide if right != inner else low + 8
        ys = _y_on(arrow, x), _y_on(arrow, x + wide)
        top = min(ys) - apart - tall if above else max(ys) + apart
        at, anchor = (x + wide, "end") if right else (x, "start")
        yield [replace(line, x=at, y=top + 11 + 14 * n, anchor=anchor) for n, line in enumerate(shown)]


def _y_on(arrow: Arrow, x: float) -> float:
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    return y1 + (y2 - y1) * min(1.0, max(0.0, (x - x1) / (x2 - x1)))


def _corridor(layout: Layout, arrow: Arrow, at_end: bool) -> tuple[float, float]:
    """Return the gap between columns that the arrow enters last, or leaves first."""
    (x1, _), (x2, _) = arrow.start, arrow.end
    for one, other in pairwise(layout.columns.values()):
        if (x2 if at_end else x1) == (other.x if (x2 > x1) == at_end else one.right):
            return one.right, other.x
    return min(x1, x2), max(x1, x2)


def _wait_places(arrow: Arrow) -> Iterator[list[Label]]:
    x, end = arrow.start
    if arrow.ready_y is not None and end - arrow.ready_y >= 8:
        text = f"bus busy {seconds(arrow.transfer.start - arrow.transfer.ready)}"
        x, anchor = (x + 9, "start") if arrow.end[0] > x else (x - 9, "end")
        for share in (0.5, 0.25, 0.75):
            y = arrow.ready_y + (end - arrow.ready_y) * share + 4
            yield [Label(x, y, text, 11.5, WAIT, anchor=anchor, ground=PAPER)]


def _gap_places(names: design.Names, place: Rect, idle: float, cause: str) -> Iterator[list[Label]]:
    """Yield `idle 2.2 ms` over its cause, in the middle of the gap if it is free; then the first line alone."""
    x, room = place.x + place.w / 2, place.w - 14
    time, ending = seconds(idle), "" if cause else " to the end"
    heads = (f"idle{ending} {time}", f"idle {time}", time)
    head = next((text for text in heads if design.width(text, 12) <= room), "")
    whole = [f"waits for {cause}", cause] if cause else []
    fitting = (text for text in whole if design.width(text, 12) <= room)
    below = next(fitting, names.fit(cause.rpartition(" from ")[0] or cause, room, 12))
    lines = [(-3.0, head), (12.0, below)] if below and place.h >= 44 else [(4.0, head)]
    for shown, share in product((lines, lines[:1]), (0.5, 0.25, 0.75)):
        if place.h >= 24:
            y = place.y + place.h * share
            yield [Label(x, y + down, text, 12, QUIET, anchor="middle", ground=LANE) for down, text in shown]
