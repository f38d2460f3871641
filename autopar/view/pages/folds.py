"""What a placed graph folds, or has no room to name, as lists that open."""

from __future__ import annotations

from ...text.tables import seconds
from ..drawing.svg import escape
from ..placed.fold import Card
from ..placed.layout import Layout

_MOST_RUNS = 6


def folds(layout: Layout) -> str:
    """HTML, closed at first: for each stack of repeated blocks its blocks, and for each of these its longest runs;
    then the boxes without a name. After the labels have been placed."""
    found = [
        _stack(layout, f"f{index}", box.card) for index, box in enumerate(layout.boxes) if box.card.copies
    ]
    listed = ["<h3>Folded blocks</h3>", *found] if found else []
    return "".join([*listed, _unnamed(layout)])


def _unnamed(layout: Layout) -> str:
    """The boxes that no label was found room for, by start."""
    order = sorted(layout.unnamed, key=lambda box: (box.card.start, box.card.lane))
    rows = [
        f"<dd>{escape(box.card.title)}, {escape(box.card.lane)}</dd><dd>{seconds(box.card.start)}</dd>"
        for box in order
    ]
    head = f"Not named in the chart: {len(rows)}"
    return f"<details><summary>{head}</summary><dl>{''.join(rows)}</dl></details>" if rows else ""


def _stack(layout: Layout, name: str, card: Card) -> str:
    head = f"{card.title} on {card.device}: × {len(card.copies)}, {seconds(card.busy)}"
    blocks = []
    for copy in card.copies:
        places = sorted(
            (layout.plan.place[run] for run in copy.runs),
            key=lambda place: (place.start - place.end, place.start),
        )
        rows = [
            f"<dd>{escape(layout.plan.words.run(p.run))}</dd><dd>{seconds(p.end - p.start)}</dd>"
            for p in places
        ]
        if len(rows) > _MOST_RUNS:
            rows[_MOST_RUNS:] = [f"<dd>and {len(rows) - _MOST_RUNS} shorter ones</dd><dd></dd>"]
        line = f"{copy.name}: {seconds(copy.start)} → {seconds(copy.end)}, at work {seconds(copy.busy)}"
        blocks.append(f"<details><summary>{escape(line)}</summary><dl>{''.join(rows)}</dl></details>")
    return f'<details id="{name}"><summary>{escape(head)}</summary>{"".join(blocks)}</details>'
