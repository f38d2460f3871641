"""Labels of boxes too thin to hold one: in the idle time under or over them, else beside the lane with a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..drawing import fonts
from ..drawing.free_space import Label
from ..drawing.palette import INK
from .layout import Box, Layout

_LEAD = 22.0
_LINE = 13.0
_CLOSE = 5.0
_MOST_LINES = 4
_MOST = 60


def thin_labels(layout: Layout, thin: Sequence[Box]) -> list[Label]:
    """A label for each of the `thin` boxes, the longest first, where there is room; that is then taken."""
    done: list[Label] = []
    beside: list[Box] = []
    for group in _groups(thin):
        labels = layout.room.first(_captions(layout, group), pad=0.5)
        done += labels
        beside += [] if labels else group
    for number, box in enumerate(sorted(beside, key=lambda box: (-box.h, box.y, box.x))):
        tries = _spots(layout, box) if number < _MOST and box.h >= 2 else iter(())
        label = next(filter(None, (_led(layout, box, *spot) for spot in tries)), None)
        if label is None:
            layout.unnamed.append(box)
        else:
            layout.room.take(label.rect)
            done.append(label)
    return done


def _groups(thin: Sequence[Box]) -> list[list[Box]]:
    """Boxes of one lane that hardly have a space between them, the longest group first."""
    order = sorted(thin, key=lambda box: (box.x, box.y))
    groups = [order[:1]] if order else []
    for before, box in pairwise(order):
        if box.x == before.x and box.y - before.y - before.h < _CLOSE:
            groups[-1].append(box)
        else:
            groups.append([box])
    return sorted(groups, key=lambda group: (-sum(box.h for box in group), group[0].x, group[0].y))


def _captions(layout: Layout, group: list[Box]) -> Iterator[list[Label]]:
    """The names of a group, one under the other in the order of the boxes; of a large one the first and last."""
    first, last = group[0], group[-1]
    titles = [box.card.title for box in group]
    if len(group) > _MOST_LINES:
        titles = [f"{len(group)} clusters: {titles[0]}", f"… {titles[-1]}"]
    bold = any(box.critical for box in group)
    tall = _LINE * len(titles)
    for mark, top in (("↑", last.y + last.h + 2), ("↓", first.y - 3 - tall)):
        texts = [fonts.fit_words(f"{mark} {title}", first.w - 16, 11.5, bold) for title in titles]
        if layout.top <= top <= layout.bottom - tall and not any(text.endswith("…") for text in texts):
            lines = enumerate(texts)
            yield [Label(first.x + 8, top + 10 + _LINE * n, text, 11.5, INK, bold) for n, text in lines]


def _spots(layout: Layout, box: Box) -> Iterator[tuple[bool, float, float]]:
    """(to the right?, pixels of room there, pixels below the box) of where its label may be, nearest first."""
    order = sorted(layout.columns.values(), key=lambda column: column.x)
    here = order.index(layout.columns[box.card.device])
    sides = []
    if here + 1 < len(order) and box.x + box.w >= order[here].right - 1:
        sides.append((True, order[here + 1].x - order[here].right))
    if here and box.x <= order[here].x + 1:
        sides.append((False, order[here].x - order[here - 1].right))
    for down in (0, 13, -13, 26, -26, 39, -39, 52, -52):
        for right, room in sides:
            yield right, room, down


def _led(layout: Layout, box: Box, right: bool, room: float, down: float) -> Label | None:
    """The label of a thin box at a spot; None where that is taken."""
    sign = 1 if right else -1
    edge, middle = box.x + box.w * right, box.y + box.h / 2
    text = fonts.fit_words(box.card.title, room - _LEAD - 10, 11.5, box.critical)
    start, end = (edge + sign, middle), (edge + sign * (_LEAD - 3), middle + down)
    anchor = "start" if right else "end"
    y = middle + down + 4
    label = Label(edge + sign * _LEAD, y, text, 11.5, INK, box.critical, anchor, True, (start, end))
    inside = layout.top - 14 < y < layout.bottom
    free = inside and layout.room.free(label.rect.grown(1.5)) and layout.room.open(start, end)
    return label if text and free else None
