"""The pictures as self-contained pages: the SVG inside, cards on hover, focus and touch, nothing fetched."""

from __future__ import annotations

import json
from typing import Any

from ...ir.plan import Plan
from ...ir.steps import Placed, Transfer
from ...ir.timeline import Timeline
from ...text.tables import percent, seconds, size
from ..drawing.palette import QUIET
from ..drawing.svg import escape
from ..placed import NOTES, placed_pieces, undrawn
from ..placed.layout import PANEL, Arrow, Box, Layout, lay_out
from ..report.facts import level_at
from ..report.names import module_of, slow_down
from ..report.waits import waited
from ..timeline import timeline_svg
from .folds import folds
from .page import page

_MOST_RUNS = 8
_LEAST = 0.55
"""Share of its size to which a chart shrinks with the window, as its labels must be read: then it scrolls."""
Facts = dict[str, Any]


def placed_page(plan: Plan, timeline: Timeline | None = None) -> str:
    """The placed graph as one HTML file."""
    layout = lay_out(plan)
    head, chart, side = placed_pieces(layout, timeline)
    cards: dict[str, Facts] = {}
    measured = _measured(timeline)
    for index, box in enumerate(layout.boxes):
        cards[f"b{index}"] = box_card(layout, box, measured)
        if box.card.copies:
            cards[f"b{index}"]["fold"] = f"f{index}"
    for index, arrow in enumerate(layout.arrows):
        cards[f"t{index}"] = _arrow_card(layout, arrow)
    left_out = f"<p>{escape(undrawn(layout))}</p>" if layout.undrawn else ""
    body = (
        f'<p class="label">{escape(plan.costed.machine.label)}</p>'
        f'<div class="head">{head}</div><div class="chart" style="max-width:{chart.width:.0f}px;'
        f'--least:{max(640.0, chart.width * _LEAST):.0f}px">{chart}</div>'
        f'<div class="side">{side}{folds(layout)}</div>{left_out}<p>{escape(NOTES)}</p>'
    )
    data = json.dumps({"cards": cards, "width": PANEL}, ensure_ascii=False)
    return page(f"{plan.costed.graph.name} · autopar", body, data)


def timeline_page(timeline: Timeline) -> str:
    """The timeline picture as one HTML file; spans say what they are when pointed at."""
    return page(
        f"{timeline.title} · autopar",
        f'<p class="label">{escape(timeline.label)}</p><div class="head">{timeline_svg(timeline)}</div>',
        "",
    )


def _measured(timeline: Timeline | None) -> dict[str, float]:
    spans = timeline.spans if timeline else ()
    return {span.name: span.seconds for span in spans if span.kind == "compute" and not span.run}


def box_card(layout: Layout, box: Box, measured: dict[str, float]) -> Facts:
    """What the card of a box says: rows of facts, and for a single run the reasons it is there."""
    plan, card = layout.plan, box.card
    shade = layout.columns[card.device].shade
    facts: Facts = {
        "title": card.title,
        "device": card.device,
        "hue": shade.hue,
        "text": shade.text,
        "ring": [round(side, 1) for side in (box.x, box.y, box.w, max(box.h, 1.0))],
    }
    spans = f"{seconds(card.start)} → {seconds(card.end)}"
    rows = [["lane", card.lane], ["runs", spans], ["takes", seconds(card.busy)]]
    if len(card.runs) == 1:
        rows += _run_rows(layout, card.runs[0])
        facts["why"] = _why(layout, plan.place[card.runs[0]])
    else:
        share = card.busy / (card.end - card.start) if card.end > card.start else 1.0
        rows.append(["holds", f"{len(card.runs)} runs, busy {percent(share)} of the time between"])
        if card.copies:
            rows.append(["blocks", f"{len(card.copies)} × {seconds(card.busy / len(card.copies))}"])
            slow = max(card.copies, key=lambda copy: copy.busy)
            rows.append(["slowest", f"{slow.name}, {seconds(slow.busy)}"])
        places = sorted((plan.place[run] for run in card.runs), key=lambda p: (p.start - p.end, p.start))
        facts["parts"] = [[plan.words.run(p.run), seconds(p.end - p.start)] for p in places[:_MOST_RUNS]]
        if len(places) > _MOST_RUNS:
            facts["parts"].append([f"and {len(places) - _MOST_RUNS} shorter ones", ""])
    got = [measured[run] for run in card.runs if run in measured]
    if got:
        clock = "" if slow_down(plan) == 1 else f" (clock × {slow_down(plan):g})"
        rows.append(["measured", seconds(sum(got)) + clock])
    held = frozenset(card.runs)
    sends = sum(
        t.bytes for t in plan.transfers if t.src == card.device and plan.costed.producer.get(t.value) in held
    )
    if sends:
        rows.append(["sends", size(sends)])
    memory = next((memory for memory in plan.memory if memory.device == card.device), None)
    if memory:
        cap = f" of {size(memory.cap)}" if memory.cap else ""
        rows.append(["memory after", size(level_at(memory.steps, card.end)) + cap])
    facts["rows"] = rows
    return facts


def _run_rows(layout: Layout, name: str) -> list[list[str]]:
    plan = layout.plan
    run = plan.costed.run[name]
    tasks = [plan.costed.graph.task[task] for task in run.tasks]
    rows = []
    for label, text in (
        ("module", module_of(plan, name)),
        ("source", tasks[0].source),
        ("code", tasks[0].code),
        (
            "tasks",
            ", ".join(task.target for task in tasks[:4])
            + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else ""),
        ),
        (
            "reads",
            ", ".join(_shaped(plan, value) for value in run.reads[:4]) + (" …" if len(run.reads) > 4 else ""),
        ),
        (
            "makes",
            ", ".join(_shaped(plan, value) for value in run.makes[:4]) + (" …" if len(run.makes) > 4 else ""),
        ),
    ):
        if text:
            rows.append([label, text])
    number = layout.found.number[name]
    rows.append(["waited for", waited(plan, layout.found, number) or "nothing"])
    slack = layout.found.slack[number]
    rows.append(["slack", "none, on the critical path" if number in layout.found.on_path else seconds(slack)])
    return rows


def _shaped(plan: Plan, value: str) -> str:
    known = plan.costed.graph.value[value]
    return f"{plan.words.value(value)} {list(known.shape)}"


def _why(layout: Layout, placed: Placed) -> Facts | None:
    reason = layout.plan.reason.get(placed.run)
    if reason is None:
        return None
    ends = [choice.end for choice in reason.choices if choice.end is not None]
    low = min((min(choice.arrives, choice.free) for choice in reason.choices), default=0.0)
    high = max(ends, default=low)
    scale = 100 / (high - low) if high > low else 0.0
    own = next((choice.end for choice in reason.choices if choice.device == placed.device), None)
    bars = []
    for choice in sorted(
        reason.choices, key=lambda c: (c.device != placed.device, c.end is None, c.end or 0.0)
    ):
        bar: Facts = {"device": choice.device, "hue": layout.columns[choice.device].shade.hue}
        if choice.end is None:
            bar["note"] = choice.why or "cannot run here"
        else:
            begin = max(choice.arrives, choice.free)
            bar["at"] = [round((when - low) * scale, 2) for when in (choice.arrives, begin, choice.end)]
            bar["end"] = seconds(choice.end)
            here = choice.device == placed.device
            late = choice.end - own if own is not None else 0.0
            bar["more"] = "chosen" if here else ("+" if late >= 0 else "−") + seconds(abs(late))
        bars.append(bar)
    return {"text": reason.text, "bars": bars}


def _arrow_card(layout: Layout, arrow: Arrow) -> Facts:
    plan, first = layout.plan, arrow.transfers[0]
    middle = (arrow.y1 + arrow.y2_last) / 2
    facts: Facts = {
        "device": f"{first.src} → {first.dst}",
        "hue": QUIET,
        "text": QUIET,
        "y": round(middle, 1),
    }
    if len(arrow.transfers) > 1:
        facts["title"] = f"{len(arrow.transfers)} transfers"
        order = sorted(arrow.transfers, key=lambda t: (-t.bytes, t.start))
        facts["parts"] = [
            [plan.words.value(t.value), f"{size(t.bytes)} · {seconds(t.end - t.start)}"]
            for t in order[:_MOST_RUNS]
        ]
        facts["rows"] = [
            ["moves", size(arrow.bytes)],
            ["runs", f"{seconds(first.start)} → {seconds(max(t.end for t in order))}"],
        ]
        return facts
    facts["title"] = plan.words.value(first.value)
    known = plan.costed.graph.value.get(first.value)
    rows = [
        ["tensor", f"{first.value} {list(known.shape)} {known.dtype}" if known else first.value],
        ["moves", size(first.bytes)],
    ]
    rows += [["ready", seconds(first.ready)], ["runs", f"{seconds(first.start)} → {seconds(first.end)}"]]
    rows.append(["queue", first.lane])
    held = _held(layout, first)
    if held:
        rows.append(["waited for", held])
    facts["rows"] = rows
    return facts


def _held(layout: Layout, transfer: Transfer) -> str:
    number = next(i for i, step in enumerate(layout.found.steps) if step is transfer)
    wait = layout.found.last[number]
    if wait is None or transfer.start <= transfer.ready:
        return ""
    before = layout.found.steps[wait.step]
    what = (
        f"{layout.plan.words.value(before.value)}, {before.src} → {before.dst}"
        if isinstance(before, Transfer)
        else layout.plan.words.run(before.run)
    )
    return f"{what} ({seconds(transfer.start - transfer.ready)})"
