"""The labels of a placed graph: each where it is free of boxes, lines and other labels, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ...ir.display_names import operator
from ...text.tables import percent, seconds, size
from ..drawing import fonts
from ..drawing.free_space import Label, Rect
from ..drawing.palette import INK, QUIET, WAIT, strips
from ..report.names import Stretch, module_of, stretches
from .layout import LEFT, Arrow, Box, Gap, Layout
from .outside_labels import thin_labels

_STRIP = 10.0
_PAD = 9.0
_APART = 2.0
_STEP, _MOST_STEPS = 6.0, 40


def box_labels(layout: Layout, box: Box) -> list[Label]:
    """Name and duration, and a second line where the box is high enough; none in a box under 16 pixels."""
    card = box.card
    if box.h < 16:
        return []
    bold = box.critical
    shown = 13.0 if box.h >= 18 else 11.5
    strip_left, strip_right = strips(card.phase)
    left, right = box.x + _STRIP * strip_left + _PAD, box.x + box.w - _STRIP * strip_right - _PAD
    badge = fonts.width(f"× {len(card.copies)}", 12, True) + 22 if card.copies else 0.0
    time, second = seconds(card.busy), _second_line(layout, box)
    two = box.h >= 40
    room = right - left - fonts.width(time, shown, bold) - 10
    name = fonts.fit_words(card.title, room, shown, bold)
    wider = fonts.fit_words(card.title, right - left, shown, bold)
    if name != wider and two:
        name, second, time = wider, " · ".join(filter(None, (time, second))), ""
    elif name != wider and (name.endswith("…") or len(name) < 8 or f" {card.phase}" in wider[len(name) :]):
        name, time = wider, ""
    third = ""
    if card.copies and not time and box.h >= 60:
        second, _, third = second.partition(" · ")
        third = fonts.fit_words(third, right - left - badge, 12)
    second = fonts.fit_words(second, right - left - badge, 12) if two else ""
    half = 28.0 if third else 20.0 if second else 8.0
    for middle in _middles(box, half):
        base = middle - 3.5 if second else middle + shown * 0.36
        labels = [
            Label(left, base, name, shown, INK, bold),
            Label(right, base, time, shown, INK, bold, "end"),
        ]
        labels.append(Label(left, middle + 13, second, 12, QUIET))
        labels.append(Label(left, middle + 28, third, 12, QUIET))
        labels = [label for label in labels if label.text]
        if all(layout.room.unlined(label.rect.grown(_APART)) for label in labels):
            return labels
    return []


def _middles(box: Box, half: float) -> Iterator[float]:
    """Where the middle of a label may be that is twice `half` high: that of the box first, then ever farther off."""
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
    elif len(card.runs) > 1:
        parts.append(f"{len(card.runs)} runs")
    else:
        tasks = layout.plan.costed.run[card.runs[0]].tasks
        module = module_of(layout.plan, card.runs[0])
        heavy = layout.plan.costed.graph.task.get(card.runs[0])
        called = operator(heavy) if heavy and module else ""
        parts.append(module if module and module not in card.title else called)
        parts.append(heavy.part if heavy else "")
        if len(tasks) > 1:
            parts.append(f"{len(tasks)} tasks")
    if share < 0.985:
        parts.append(f"busy {percent(share)}")
    return ", ".join(filter(None, parts))


def free_labels(layout: Layout) -> list[Label]:
    """The labels outside of boxes, the important ones first: transfers, waits, thin boxes, idle times."""
    done: list[Label] = []
    order = sorted(layout.arrows, key=lambda arrow: (not arrow.critical, -arrow.bytes, arrow.y1))
    for arrow in order:
        done += layout.room.first(_arrow_places(layout, arrow), pad=3.0)
    for arrow in order:
        done += layout.room.first(_wait_places(arrow), pad=3.0)
    done += thin_labels(layout, [box for box in layout.boxes if not box_labels(layout, box)])
    for gap in sorted(layout.gaps, key=lambda gap: -gap.h):
        done += layout.room.first(_gap_places(gap), pad=3.0)
    return done


def _arrow_places(layout: Layout, arrow: Arrow) -> Iterator[list[Label]]:
    """Two lines beside the arrow, above it at its end first; then only the figures."""
    gap_left, gap_right = _corridor(layout, arrow, at_target=True)
    back_left, back_right = _corridor(layout, arrow, at_target=False)
    first = arrow.transfers[0]
    name = layout.plan.words.value(first.value)
    if len(arrow.transfers) > 1:
        name = f"{len(arrow.transfers)} transfers"
        figures = f"{size(arrow.bytes)} · {seconds(sum(t.end - t.start for t in arrow.transfers))}"
    else:
        figures = f"{size(arrow.bytes)} · {seconds(first.end - first.start)}"
    widest = min(gap_right - gap_left, back_right - back_left) - 14
    full = (fonts.fit_words(name, widest, 12, arrow.critical), fonts.fit(figures, widest, 11.5))
    for lines in (full, full[1:], full[:1]):
        if not all(lines):
            continue
        wide = max(fonts.width(text, 12, arrow.critical) for text in lines)
        tall = 14.0 * len(lines)
        spots = []
        for low, high, at_end in ((gap_left, gap_right, True), (back_left, back_right, False)):
            toward = (arrow.x2 > arrow.x1) == at_end
            near = high - 8 - wide if toward else low + 8
            far = low + 8 if toward else high - 8 - wide
            spots += [(near, at_end), ((low + high - wide) / 2, at_end), (far, at_end)]
        for nudge in (7.0 if arrow.critical else 4.0, 12.0, 22.0):
            for above in (True, False):
                for x, at_end in spots:
                    ys = [_y_on(arrow, x), _y_on(arrow, x + wide)]
                    deeper = arrow.y1_last - arrow.y1
                    top = min(ys) - nudge - tall if above else max(ys) + deeper + nudge
                    right = (arrow.x2 > arrow.x1) == at_end
                    # What is beyond another line seems to belong to that.
                    edge = top + tall if above else max(ys) + deeper + 4
                    if not layout.room.unlined(Rect(x + wide / 2 - 4, edge, 8, nudge - 4)):
                        continue
                    yield _lines(lines, x, top, wide, right, arrow.critical)


def _lines(lines: tuple[str, ...], x: float, top: float, wide: float, right: bool, bold: bool) -> list[Label]:
    at, anchor = (x + wide, "end") if right else (x, "start")
    found = []
    for index, text in enumerate(lines):
        name = index == 0 and len(lines) > 1
        color = INK if name or bold else QUIET
        found.append(
            Label(
                at, top + 11 + 14 * index, text, 12 if name else 11.5, color, bold and name, anchor, halo=True
            )
        )
    return found


def _y_on(arrow: Arrow, x: float) -> float:
    share = (x - arrow.x1) / (arrow.x2 - arrow.x1)
    return arrow.y1 + (arrow.y2 - arrow.y1) * min(1.0, max(0.0, share))


def _corridor(layout: Layout, arrow: Arrow, *, at_target: bool) -> tuple[float, float]:
    """The gap between columns that the arrow enters last, or leaves by first."""
    x = arrow.x2 if at_target else arrow.x1
    order = sorted(layout.columns.values(), key=lambda column: column.x)
    for one, other in pairwise(order):
        if one.right == x and (arrow.x1 > arrow.x2) == at_target:
            return one.right, other.x
        if other.x == x and (arrow.x2 > arrow.x1) == at_target:
            return one.right, other.x
    return min(arrow.x1, arrow.x2), max(arrow.x1, arrow.x2)


def _wait_places(arrow: Arrow) -> Iterator[list[Label]]:
    if arrow.ready_y is None or arrow.y1 - arrow.ready_y < 8:
        return
    text = f"bus busy {seconds(arrow.transfers[0].start - arrow.transfers[0].ready)}"
    right = arrow.x2 > arrow.x1
    x = arrow.x1 + (9 if right else -9)
    for share in (0.5, 0.25, 0.75):
        y = arrow.ready_y + (arrow.y1 - arrow.ready_y) * share + 4
        yield [Label(x, y, text, 11.5, WAIT, anchor="start" if right else "end", halo=True)]


def _gap_places(gap: Gap) -> Iterator[list[Label]]:
    """`idle 2.2 ms` over its cause, in the middle of the gap; one line, or none, where there is less room."""
    x, middle, room = gap.x + gap.w / 2, gap.y + gap.h / 2, gap.w - 14
    last = gap.cause == "done"
    time = seconds(gap.end - gap.start)
    heads = ([f"idle to the end {time}"] if last else []) + [f"idle {time}", time]
    head = next((text for text in heads if fonts.width(text, 12) <= room), "")
    cause = "" if last else gap.cause
    if fonts.width(cause, 12) > room:
        cause = cause.removeprefix("waits for ")
        cause = (
            cause
            if fonts.width(cause, 12) <= room
            else fonts.fit_words(cause.rpartition(" of ")[0] or cause, room, 12)
        )
    places = (0.0, -0.2, 0.2, -0.34, 0.34)
    if gap.h >= 44 and cause and head:
        for share in places:
            y = middle + gap.h * share
            yield [
                Label(x, y - 3, head, 12, QUIET, anchor="middle"),
                Label(x, y + 12, cause, 12, QUIET, anchor="middle"),
            ]
    if gap.h >= 24 and head:
        for share in places:
            yield [Label(x, middle + gap.h * share + 4, head, 11.5, QUIET, anchor="middle")]


def brackets(layout: Layout) -> list[tuple[float, float, list[Label]]]:
    """The critical path down the left margin: (top, bottom, labels) of each stretch that is tall enough
    to be seen."""
    found = []
    x = LEFT - 78
    for part in stretches(layout.plan, layout.found):
        top, bottom = layout.y(part.start), layout.y(part.end)
        if bottom - top < 5:
            continue
        labels = _bracket_labels(part, x - 9, (top + bottom) / 2, bottom - top)
        found.append((top, bottom, labels if labels and layout.room.place(labels, pad=2.5) else []))
    return found


def _bracket_labels(part: Stretch, x: float, middle: float, tall: float) -> list[Label]:
    room = x - 8
    time = seconds(part.end - part.start)
    if part.kind == "compute":
        head, verdict, color = part.where.rsplit("/", 1)[0], "computes", QUIET
    elif part.kind == "copy":
        head, verdict, color = part.what, "exposed", WAIT
    else:
        head, verdict, color = "waits", "", WAIT
    bold = not fonts.fit_words(head, room, 12, True).endswith("…")
    head = fonts.fit_words(head, room, 12 if bold else 11.5, bold)
    if tall >= 42 and verdict:
        return [
            Label(x, middle - 11, head, 12 if bold else 11.5, INK, bold, "end"),
            Label(x, middle + 4, time, 12, QUIET, anchor="end"),
            Label(x, middle + 19, verdict, 12, color, anchor="end"),
        ]
    if tall >= 12:
        return [Label(x, middle + 4, time, 11.5, color, anchor="end")]
    return []
