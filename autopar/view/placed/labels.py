"""Labels of a placed graph, each placed free of boxes, lines and other labels, or omitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

from ...ir.display_names import operator
from ...system.text import percent, seconds, size
from ..drawing import design
from ..drawing.design import INK, QUIET, WAIT, strips
from ..drawing.free_space import Label, Rect
from ..report.reasons import module_of, sections
from .layout import LEFT, Arrow, Box, Layout

_STRIP, _PAD, _APART = 10.0, 9.0, 2.0
"""Pixels of the pattern at the edge of a box, from there to a label, and from a label to lines over the box."""
_STEP, _MOST_STEPS = 6.0, 40
"""Pixels between the heights that are tried for a label in a box, and their number in each direction."""
_LEAD = 22.0
"""Pixels from a thin box to its label in the gap beside its column."""
_LINE, _CLOSE, _MOST_LINES = 13.0, 5.0, 4
"""Pixels of a line of captions, largest gap in pixels between boxes of one caption, and limit on its names."""
_MOST = 60
"""Limit on the thin boxes that may get a label beside them."""


def box_labels(layout: Layout, box: Box) -> list[Label]:
    """Return name and duration, with a second line if the box is high enough; none below 16 pixels."""
    card = box.card
    if box.h < 16:
        return []
    bold = box.critical
    shown = 13.0 if box.h >= 18 else 11.5
    strip_left, strip_right = strips(card.phase)
    left, right = box.x + _STRIP * strip_left + _PAD, box.x + box.w - _STRIP * strip_right - _PAD
    badge = design.width(f"× {len(card.copies)}", 12, True) + 22 if card.copies else 0.0
    time, second = seconds(card.busy), _second_line(layout, box)
    two = box.h >= 40
    room = right - left - design.width(time, shown, bold) - 10
    name = design.fit_words(card.title, room, shown, bold)
    wider = design.fit_words(card.title, right - left, shown, bold)
    if name != wider and two:
        name, second, time = wider, " · ".join(filter(None, (time, second))), ""
    elif name != wider and (name.endswith("…") or len(name) < 8 or f" {card.phase}" in wider[len(name) :]):
        name, time = wider, ""
    third = ""
    if card.copies and not time and box.h >= 60:
        second, _, third = second.partition(" · ")
        third = design.fit_words(third, right - left - badge, 12)
    second = design.fit_words(second, right - left - badge, 12) if two else ""
    half = 28.0 if third else 20.0 if second else 8.0
    for middle in _middles(box, half):
        base = middle - 3.5 if second else middle + shown * 0.36
        lines = [
            Label(left, base, name, shown, INK, bold),
            Label(right, base, time, shown, INK, bold, "end"),
            Label(left, middle + 13, second, 12, QUIET),
            Label(left, middle + 28, third, 12, QUIET),
        ]
        labels = [label for label in lines if label.text]
        if all(layout.space.unlined(label.rect.grown(_APART)) for label in labels):
            return labels
    return []


def _middles(box: Box, half: float) -> Iterator[float]:
    """Yield candidate centres of a label of height 2 × `half`, from the centre of the box outwards."""
    middle, most = box.y + box.h / 2, max(0.0, box.h / 2 - half)
    yield middle
    for step in range(1, min(_MOST_STEPS, int(most / _STEP)) + 1):
        yield from (middle - step * _STEP, middle + step * _STEP)
    yield from (middle - most, middle + most)


def _second_line(layout: Layout, box: Box) -> str:
    card = box.card
    share = card.busy / (card.end - card.start) if card.end > card.start else 1.0
    parts = []
    if card.copies:
        parts.append(f"{seconds(card.busy / len(card.copies))} each")
    elif len(card.clusters) > 1:
        parts.append(f"{len(card.clusters)} clusters")
    else:
        tasks = layout.plan.costed.cluster[card.clusters[0]].tasks
        module = module_of(layout.plan, card.clusters[0])
        heavy = layout.plan.costed.graph.task.get(card.clusters[0])
        called = operator(heavy) if heavy and module else ""
        parts.append(module if module and module not in card.title else called)
        parts.append(heavy.part if heavy else "")
        if len(tasks) > 1:
            parts.append(f"{len(tasks)} tasks")
    if share < 0.985:
        parts.append(f"busy {percent(share)}")
    return ", ".join(filter(None, parts))


def free_labels(layout: Layout) -> list[Label]:
    """Return the labels outside of boxes, important ones first: transfers, waits, thin boxes, idle times."""
    done: list[Label] = []
    order = sorted(layout.arrows, key=lambda arrow: (not arrow.critical, -arrow.bytes, arrow.y1))
    for arrow in order:
        done += layout.space.first(_arrow_places(layout, arrow), pad=3.0)
    for arrow in order:
        done += layout.space.first(_wait_places(arrow), pad=3.0)
    done += _thin_labels(layout, [box for box in layout.boxes if not box_labels(layout, box)])
    for gap in sorted(layout.gaps, key=lambda gap: -gap[0].h):
        done += layout.space.first(_gap_places(*gap), pad=3.0)
    return done


def _arrow_places(layout: Layout, arrow: Arrow) -> Iterator[list[Label]]:
    """Yield candidate labels of an arrow: name over bytes and time, above its end first; then only one of the two."""
    ends = [(*_corridor(layout, arrow, at_end), (arrow.x2 > arrow.x1) == at_end) for at_end in (True, False)]
    widest = min(high - low for low, high, _ in ends) - 14
    count, bold = len(arrow.transfers), arrow.critical
    name = layout.plan.words.value(arrow.transfers[0].value) if count == 1 else f"{count} transfers"
    figures = f"{size(arrow.bytes)} · {seconds(sum(t.end - t.start for t in arrow.transfers))}"
    name, figures = design.fit_words(name, widest, 12, bold), design.fit(figures, widest, 11.5)
    lines = [
        Label(0, 0, name, 12, INK, bold, halo=True),
        Label(0, 0, figures, 11.5, INK if bold else QUIET, halo=True),
    ]
    for shown in (lines, lines[1:], lines[:1]):
        wide, tall = max(line.rect.w for line in shown), 14.0 * len(shown)
        spots: list[tuple[float, bool]] = []
        for low, high, right in ends:
            edges = (high - 8 - wide, low + 8) if right else (low + 8, high - 8 - wide)
            spots += [(x, right) for x in (edges[0], (low + high - wide) / 2, edges[1])]
        for nudge, above, (x, right) in product((7.0 if bold else 4.0, 12.0, 22.0), (True, False), spots):
            ys = [_y_on(arrow, x), _y_on(arrow, x + wide)]
            below = max(ys) + arrow.y1_last - arrow.y1
            top = min(ys) - nudge - tall if above else below + nudge
            # A label beyond another line would seem to belong to that line.
            between = Rect(x + wide / 2 - 4, top + tall if above else below + 4, 8, nudge - 4)
            if layout.space.unlined(between):
                at, anchor = (x + wide, "end") if right else (x, "start")
                yield [
                    replace(line, x=at, y=top + 11 + 14 * n, anchor=anchor) for n, line in enumerate(shown)
                ]


def _y_on(arrow: Arrow, x: float) -> float:
    share = (x - arrow.x1) / (arrow.x2 - arrow.x1)
    return arrow.y1 + (arrow.y2 - arrow.y1) * min(1.0, max(0.0, share))


def _corridor(layout: Layout, arrow: Arrow, at_end: bool) -> tuple[float, float]:
    """Return the gap between columns that the arrow enters last, or leaves first."""
    x = arrow.x2 if at_end else arrow.x1
    for one, other in pairwise(layout.columns.values()):
        if x == (other.x if (arrow.x2 > arrow.x1) == at_end else one.right):
            return one.right, other.x
    return min(arrow.x1, arrow.x2), max(arrow.x1, arrow.x2)


def _wait_places(arrow: Arrow) -> Iterator[list[Label]]:
    if arrow.ready_y is None or arrow.y1 - arrow.ready_y < 8:
        return
    text = f"bus busy {seconds(arrow.transfers[0].start - arrow.transfers[0].ready)}"
    x, anchor = (arrow.x1 + 9, "start") if arrow.x2 > arrow.x1 else (arrow.x1 - 9, "end")
    for share in (0.5, 0.25, 0.75):
        y = arrow.ready_y + (arrow.y1 - arrow.ready_y) * share + 4
        yield [Label(x, y, text, 11.5, WAIT, anchor=anchor, halo=True)]


def _gap_places(place: Rect, idle: float, cause: str) -> Iterator[list[Label]]:
    """Yield `idle 2.2 ms` over its cause, in the middle of the gap; then one line, or none."""
    x, room = place.x + place.w / 2, place.w - 14
    last, time = cause == "done", seconds(idle)
    heads = [f"idle to the end {time}"] * last + [f"idle {time}", time]
    head = next((text for text in heads if design.width(text, 12) <= room), "")
    what = cause.removeprefix("waits for ")
    causes = (cause, what, what.rpartition(" of ")[0] or what)
    cause = next((text for text in causes if design.width(text, 12) <= room), "")
    cause = "" if last else cause or design.fit_words(causes[-1], room, 12)
    middles = [place.y + place.h * share for share in (0.5, 0.3, 0.7, 0.16, 0.84)]
    if place.h >= 44 and cause:
        for y in middles:
            lines = ((y - 3, head), (y + 12, cause))
            yield [Label(x, base, text, 12, QUIET, anchor="middle") for base, text in lines]
    if place.h >= 24:
        yield from ([Label(x, y + 4, head, 11.5, QUIET, anchor="middle")] for y in middles)


def _thin_labels(layout: Layout, thin: Sequence[Box]) -> list[Label]:
    """Return a label for each of the `thin` boxes with room, the longest first, and occupy the room."""
    done: list[Label] = []
    beside: list[Box] = []
    for group in _groups(thin):
        labels = layout.space.first(_captions(layout, group), pad=0.5)
        done += labels
        beside += [] if labels else group
    for number, box in enumerate(sorted(beside, key=lambda box: (-box.h, box.y, box.x))):
        tries = _spots(layout, box) if number < _MOST and box.h >= 2 else iter(())
        label = next(filter(None, (_led(layout, box, *spot) for spot in tries)), None)
        if label is None:
            layout.unnamed.append(box)
        else:
            layout.space.take(label.rect)
            done.append(label)
    return done


def _groups(thin: Sequence[Box]) -> list[list[Box]]:
    """Return groups of nearly touching boxes of one lane, the longest first."""
    order = sorted(thin, key=lambda box: (box.x, box.y))
    groups = [order[:1]] if order else []
    for before, box in pairwise(order):
        if box.x == before.x and box.y - before.y - before.h < _CLOSE:
            groups[-1].append(box)
        else:
            groups.append([box])
    return sorted(groups, key=lambda group: (-sum(box.h for box in group), group[0].x, group[0].y))


def _captions(layout: Layout, group: list[Box]) -> Iterator[list[Label]]:
    """Yield the names of a group, one below the other in the boxes' order; if large, the first and last."""
    first, last = group[0], group[-1]
    titles = [box.card.title for box in group]
    if len(group) > _MOST_LINES:
        titles = [f"{len(group)} clusters: {titles[0]}", f"… {titles[-1]}"]
    bold = any(box.critical for box in group)
    tall = _LINE * len(titles)
    for mark, top in (("↑", last.y + last.h + 2), ("↓", first.y - 3 - tall)):
        texts = [design.fit_words(f"{mark} {title}", first.w - 16, 11.5, bold) for title in titles]
        if layout.top <= top <= layout.bottom - tall and not any(text.endswith("…") for text in texts):
            lines = enumerate(texts)
            yield [Label(first.x + 8, top + 10 + _LINE * n, text, 11.5, INK, bold) for n, text in lines]


def _spots(layout: Layout, box: Box) -> Iterator[tuple[bool, float, float]]:
    """Yield (to the right, pixels of room, pixels below the box) of possible labels, nearest first."""
    order = list(layout.columns.values())
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
    """Return the label of a thin box at a spot; None if it is occupied."""
    sign = 1 if right else -1
    edge, middle = box.x + box.w * right, box.y + box.h / 2
    text = design.fit_words(box.card.title, room - _LEAD - 10, 11.5, box.critical)
    start, end = (edge + sign, middle), (edge + sign * (_LEAD - 3), middle + down)
    anchor = "start" if right else "end"
    y = middle + down + 4
    label = Label(edge + sign * _LEAD, y, text, 11.5, INK, box.critical, anchor, True, (start, end))
    inside = layout.top - 14 < y < layout.bottom
    free = inside and layout.space.free(label.rect.grown(1.5)) and layout.space.open(start, end)
    return label if text and free else None


def brackets(layout: Layout) -> list[tuple[float, float, Sequence[Label]]]:
    """Return (top, bottom, labels) of each section of the critical path, along the left margin, that is tall
    enough."""
    found = []
    x = LEFT - 87
    for section in sections(layout.plan):
        top, bottom = layout.y(section.start), layout.y(section.end)
        tall, middle, time = bottom - top, (top + bottom) / 2, seconds(section.end - section.start)
        head, verdict, color = {
            "compute": (section.where.rsplit("/", 1)[0], "computes", QUIET),
            "copy": (section.what, "exposed", WAIT),
            "wait": ("waits", "", WAIT),
        }[section.kind]
        labels: list[Label] = []
        if tall >= 42 and verdict:
            bold = not design.fit_words(head, x - 8, 12, True).endswith("…")
            shown = 12 if bold else 11.5
            labels = [
                Label(x, middle - 11, design.fit_words(head, x - 8, shown, bold), shown, INK, bold, "end"),
                Label(x, middle + 4, time, 12, QUIET, anchor="end"),
                Label(x, middle + 19, verdict, 12, color, anchor="end"),
            ]
        elif tall >= 12:
            labels = [Label(x, middle + 4, time, 11.5, color, anchor="end")]
        if tall >= 5:
            found.append((top, bottom, layout.space.first([labels], pad=2.5)))
    return found
