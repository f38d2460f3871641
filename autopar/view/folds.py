"""The folded blocks of a placed graph as lists that open."""

from __future__ import annotations

from ..tables import seconds
from .fold import Card
from .layout import Layout
from .svg import escape

_MOST_RUNS = 6


def folds(layout: Layout) -> str:
    """HTML: for each stack of repeated blocks its blocks, and for each of these its longest runs; closed at first."""
    found = [
        _stack(layout, f"f{index}", box.card) for index, box in enumerate(layout.boxes) if box.card.copies
    ]
    return "".join(["<h3>Folded blocks</h3>", *found]) if found else ""


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
