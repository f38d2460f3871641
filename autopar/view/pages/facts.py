"""Facts of a box or an arrow on the page of a placed graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.plan import Plan, Reason
from ...ir.steps import Placed
from ...ir.timeline import Timeline
from ...text.tables import percent, seconds, size
from ..drawing.palette import Shade
from ..placed.layout import Arrow, Box, Layout
from ..report.names import module_of, slow_down
from ..report.reasons import choices, waited
from ..report.statistics import level_at

_MOST_PARTS = 8
_MOST_NAMED = 4

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ChoiceBar:
    """When a cluster would end on a device: `inputs` there, `start` and `end` in percent of the latest end; `note`
    where it cannot be there."""

    device: str
    shade: Shade
    chosen: bool
    note: str
    inputs: float = 0.0
    start: float = 0.0
    end: float = 0.0
    when: str = ""
    late: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A title, where it is, rows of facts, the longest `parts` of what is folded, and why a cluster is where it is."""

    title: str
    where: str
    shade: Shade | None
    rows: tuple[Row, ...]
    parts: tuple[Row, ...] = ()
    why: str = ""
    bars: tuple[ChoiceBar, ...] = ()


def box_facts(layout: Layout, box: Box, timeline: Timeline | None = None) -> Facts:
    """The facts of a box, with its time in a measured `timeline`; of a single cluster why it is there."""
    plan, card = layout.plan, box.card
    rows = [
        ("lane", card.lane),
        ("runs", f"{seconds(card.start)} → {seconds(card.end)}"),
        ("takes", seconds(card.busy)),
    ]
    reason: Reason | None = None
    bars: tuple[ChoiceBar, ...] = ()
    parts: tuple[Row, ...] = ()
    if len(card.clusters) == 1:
        rows += _cluster_rows(layout, card.clusters[0])
        reason = plan.reason.get(card.clusters[0])
        bars = _bars(layout, plan.place[card.clusters[0]])
    else:
        share = card.busy / (card.end - card.start) if card.end > card.start else 1.0
        rows.append(("holds", f"{len(card.clusters)} clusters, busy {percent(share)} of the time between"))
        if card.copies:
            slow = max(card.copies, key=lambda copy: copy.busy)
            rows.append(("blocks", f"{len(card.copies)} × {seconds(card.busy / len(card.copies))}"))
            rows.append(("slowest", f"{slow.name}, {seconds(slow.busy)}"))
        parts = longest_clusters(plan, card.clusters)
    held = frozenset(card.clusters)
    spans = timeline.spans if timeline else ()
    took = [
        span.seconds for span in spans if span.kind == "compute" and not span.cluster and span.name in held
    ]
    if took:
        clock = "" if slow_down(plan) == 1 else f" (clock × {slow_down(plan):g})"
        rows.append(("measured", seconds(sum(took)) + clock))
    sent = [t for t in plan.transfers if t.src == card.device and plan.costed.producer.get(t.value) in held]
    if sent:
        rows.append(("sends", size(sum(transfer.bytes for transfer in sent))))
    for memory in plan.memory:
        if memory.device == card.device:
            cap = f" of {size(memory.cap)}" if memory.cap else ""
            rows.append(("memory after", size(level_at(memory.steps, card.end)) + cap))
    shade = layout.columns[card.device].shade
    why = reason.text if reason else ""
    return Facts(card.title, card.device, shade, tuple(rows), parts, why, bars)


def _cluster_rows(layout: Layout, name: str) -> list[Row]:
    plan = layout.plan
    cluster, number = plan.costed.cluster[name], layout.found.number[name]
    tasks = [plan.costed.graph.task[task] for task in cluster.tasks]
    slack = (
        "none, on the critical path"
        if number in layout.found.on_path
        else seconds(layout.found.slack[number])
    )
    rows = [
        ("module", module_of(plan, name)),
        ("source", tasks[0].source),
        ("code", tasks[0].code),
        ("tasks", _listed([task.target for task in tasks])),
        ("reads", _listed([_shaped(plan, value) for value in cluster.reads])),
        ("makes", _listed([_shaped(plan, value) for value in cluster.makes])),
        ("waited for", waited(plan, layout.found, number) or "nothing"),
        ("slack", slack),
    ]
    return [row for row in rows if row[1]]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _shaped(plan: Plan, value: str) -> str:
    return f"{plan.words.value(value)} {list(plan.costed.graph.value[value].shape)}"


def longest_clusters(plan: Plan, clusters: Sequence[str]) -> tuple[Row, ...]:
    """The longest of some clusters with their durations, and how many there are besides."""
    places = sorted(
        (plan.place[cluster] for cluster in clusters),
        key=lambda place: (place.start - place.end, place.start),
    )
    rows = [
        (plan.words.cluster(place.cluster), seconds(place.end - place.start))
        for place in places[:_MOST_PARTS]
    ]
    return (*rows, *_besides(len(places) - _MOST_PARTS))


def _besides(count: int) -> list[Row]:
    return [(f"and {count} shorter ones", "")] if count > 0 else []


def _bars(layout: Layout, placed: Placed) -> tuple[ChoiceBar, ...]:
    reason = layout.plan.reason.get(placed.cluster)
    if reason is None:
        return ()
    low = min((min(choice.arrives, choice.free) for choice in reason.choices), default=0.0)
    high = max((choice.end for choice in reason.choices if choice.end is not None), default=low)

    def percent_at(when: float) -> float:
        return round((when - low) / (high - low) * 100, 2) if high > low else 0.0

    bars = []
    for choice, late in choices(placed.device, reason):
        here, shade = choice.device == placed.device, layout.columns[choice.device].shade
        if choice.end is None:
            bars.append(ChoiceBar(choice.device, shade, here, choice.why or "cannot run here"))
            continue
        inputs, start, end = map(percent_at, (choice.arrives, max(choice.arrives, choice.free), choice.end))
        bars.append(ChoiceBar(choice.device, shade, here, "", inputs, start, end, seconds(choice.end), late))
    return tuple(bars)


def arrow_facts(layout: Layout, arrow: Arrow) -> Facts:
    """The facts of a transfer, or of several folded into one."""
    plan, first = layout.plan, arrow.transfers[0]
    where, moves = f"{first.src} → {first.dst}", ("moves", size(arrow.bytes))
    clusters = ("runs", f"{seconds(first.start)} → {seconds(max(t.end for t in arrow.transfers))}")
    if len(arrow.transfers) > 1:
        order = sorted(arrow.transfers, key=lambda t: (-t.bytes, t.start))
        parts = [(plan.words.value(t.value), f"{size(t.bytes)} · {seconds(t.end - t.start)}") for t in order]
        parts[_MOST_PARTS:] = _besides(len(parts) - _MOST_PARTS)
        return Facts(f"{len(arrow.transfers)} transfers", where, None, (moves, clusters), tuple(parts))
    known = plan.costed.graph.value.get(first.value)
    number = next(i for i, step in enumerate(layout.found.steps) if step is first)
    rows = [
        ("tensor", f"{first.value} {list(known.shape)} {known.dtype}" if known else first.value),
        moves,
        ("ready", seconds(first.ready)),
        clusters,
        ("queue", first.lane),
        ("waited for", waited(plan, layout.found, number) if first.start > first.ready else ""),
    ]
    return Facts(plan.words.value(first.value), where, None, tuple(row for row in rows if row[1]))


def example(layout: Layout) -> Facts | None:
    """The facts of the cluster whose reasons are shown without a hover: the longest of the critical path that had a
    choice."""
    reason = layout.plan.reason
    single = [box for box in layout.boxes if len(box.card.clusters) == 1]
    choosy = [box for box in single if len(getattr(reason.get(box.card.clusters[0]), "choices", ())) > 1]
    box = min(choosy, key=lambda box: (not box.critical, -box.card.busy, box.card.start), default=None)
    return box_facts(layout, box) if box else None
