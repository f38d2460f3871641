"""The placed graph as SVG: columns are devices, time runs down, slopes are transfers, a black line is the critical
path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.graph import SUM
from ...ir.plan import Plan
from ...system.text import counted, percent, seconds, size
from ..drawing import design
from ..drawing.design import INK, QUIET, WAIT, fill_of, strips
from ..drawing.free_space import Label
from ..drawing.svg import MARGIN, SAMPLE, WIDTH, Figure, Sample, Svg, heading, phases, ticks, trace
from ..report.reasons import baseline, on_one_device, sections
from ..report.statistics import device_busy, hidden
from .labels import box_labels, free_labels
from .layout import LEFT, Arrow, Box, Layout, lay_out

_CALM = 60
"""Number of transfers on the critical path above which the path is thin, without its dots, so that lines remain."""
NOTES = (
    "autopar · predicted: end of the plan · bound: no plan of this graph is shorter here · gap: how far above it",
    "busy: share of the predicted time a device computes · peak: most memory in use · "
    "moved: bytes between devices in one call",
)


def placed_svg(plan: Plan, width: float = WIDTH, theme: str = "light") -> str:
    """Return the picture of a plan as SVG text. The groups of boxes and arrows name the facts of a page by
    `data-facts`."""
    return placed_picture(lay_out(plan, width), width).themed(theme)


def placed_picture(layout: Layout, width: float) -> Svg:
    """Return the picture of a laid out plan as shapes."""
    plan = layout.plan
    graph, label = plan.costed.graph, plan.costed.machine.label
    svg = Svg(max(layout.right + MARGIN, width), 0, f"placed graph of {graph.name}")
    figures, samples = _figures(plan), _samples(svg, layout)
    top = heading(svg, f"{graph.name}: placed graph", _under(plan), label, figures, samples)
    with svg.group(transform=f"translate(0 {top:.0f})"):
        _chart(svg, layout)
    notes = [*filter(None, [_left_out(layout)]), *NOTES]
    svg.height = top + layout.bottom + 44 + 18 * len(notes)
    for index, note in enumerate(reversed(notes)):
        text = design.fit(note, svg.width - 2 * MARGIN, 12)
        svg.text(MARGIN, svg.height - 18 - 18 * index, text, 12, QUIET)
    return svg


def _left_out(layout: Layout) -> str:
    """Return a note on what the picture does not show; empty if it shows all."""
    parts, drawn, moved = [], len(layout.arrows), len(layout.plan.transfers)
    if drawn < moved:
        parts.append(f"{drawn:,} of {moved:,} transfers drawn, those of the most bytes")
    if layout.unnamed:
        short = counted(len(layout.unnamed), "short cluster")
        parts.append(f"{short} without a name, listed beside the chart in a page (.html)")
    return " · ".join(parts)


def _under(plan: Plan) -> str:
    """Return the subtitle: sizes, policy and split; for a single-device plan the reason."""
    graph = plan.costed.graph
    text = counted(len(graph.tasks), "task")
    text += f" in {counted(len(plan.placed), 'cluster')}" if plan.costed.machine.queued else ""
    text += f", placed by {plan.policy}" + (f", batch in {graph.split}" if graph.split else "")
    return f"{text}. {on_one_device(plan) or 'Time runs downward.'}"


def _figures(plan: Plan) -> list[Figure]:
    """Return the key figures: predicted, bound, single device, moved."""
    figures = [(seconds(plan.makespan), "predicted")]
    if plan.lower_bound:
        figures.append((seconds(plan.lower_bound), f"lower bound (gap {percent(plan.gap)})"))
    single = baseline(plan)
    if single and plan.makespan:
        what = f"as fast as {single[0]} alone, {seconds(single[1])}"
        figures.append((f"{single[1] / plan.makespan:.2f} ×", what))
    if any(task.phase == "backward" and task.target == SUM for task in plan.costed.graph.tasks):
        figures.append((percent(hidden(plan, plan.timeline())), "of reduction behind backward"))
    figures.append((size(plan.moved), f"moved, {counted(len(plan.transfers), 'transfer')}"))
    return figures


def _samples(svg: Svg, layout: Layout) -> list[Sample]:
    """Return the legend of what is in the picture."""

    def across(style: str, **more: Any) -> Callable[[float, float], None]:
        return lambda x, y: svg.line((x, y), (x + SAMPLE, y), style, **more)

    def down(style: str) -> Callable[[float, float], None]:
        return lambda x, y: svg.line((x + SAMPLE / 2, y - 8), (x + SAMPLE / 2, y + 8), style)

    def transfer(x: float, y: float) -> None:
        svg.arrow((x + 4, y), (x + SAMPLE, y), QUIET, 1.6)
        svg.circle(x + 3, y, 3, "ring")

    arrows = layout.arrows
    goes_on = any(kind == "bus" for kind, _ in layout.pieces)
    samples = [
        (True, "critical path", across("critical", stroke_width=4)),
        (goes_on, "path continues over the bus", across("bus", stroke=INK, stroke_linecap="round")),
        (bool(arrows), "transfer, slope = its time", transfer),
        (any(arrow.ready_y is not None for arrow in arrows), "ready, waits for a busy bus", down("wait")),
        (True, "idle", down("idle")),
    ]
    drawn: list[Sample] = [(text, draw) for present, text, draw in samples if present]
    shade = next(iter(layout.columns.values())).shade
    return drawn + phases(svg, shade) if layout.plan.words.training else drawn


def _chart(svg: Svg, layout: Layout) -> None:
    _columns(svg, layout)
    _axis(svg, layout)
    _margin(svg, layout)
    for gap, _, _ in layout.gaps:
        if gap.h >= 20:
            x = gap.x + gap.w / 2
            svg.line((x, gap.y + 5), (x, gap.y + gap.h - 5), "idle")
    for index, box in enumerate(layout.boxes):
        _box(svg, layout, box, index)
    for index, arrow in enumerate(layout.arrows):
        _arrow(svg, layout, arrow, index)
    _critical(svg, layout)
    for arrow in layout.arrows:
        if not arrow.critical:
            svg.circle(*arrow.start, 3.4, "ring")
    with svg.group(pointer_events="none"):
        for box in layout.boxes:
            for label in box_labels(layout, box):
                svg.label(label)
        for label in free_labels(layout):
            svg.label(label)


def _columns(svg: Svg, layout: Layout) -> None:
    busy = device_busy(layout.plan.timeline())
    for column in layout.columns.values():
        svg.swatch(column.shade, column.x + 2, 18, 28, 40)
        room = column.w - 38
        tall = 17.0 if design.width(column.device, 17, True) <= room else 13.0
        svg.text(column.x + 38, 30, design.fit(column.device, room, tall, True), tall, bold=True)
        for index, text in enumerate(_use(layout, column.device, busy.get(column.device, 0.0), room)):
            svg.text(column.x + 38, 45 + 14 * index, text, 12, QUIET)
        for lane, x, w in column.lanes or (("", column.x, column.w),):
            svg.rect(x, layout.top, w, layout.height, "lane")
            if len(column.lanes) > 1:
                name = f"lane {lane.rsplit('/', 1)[1]}"
                svg.text(x + w / 2, layout.top - 10, name, 11.5, QUIET, anchor="middle")


def _use(layout: Layout, device: str, busy: float, room: float) -> list[str]:
    """Return the utilization and peak memory of a device, in lines of at most `room` pixels."""
    used, cap = layout.columns[device].lanes, layout.plan.costed.machine.device[device].memory_bytes
    peak = layout.plan.peaks.get(device, 0)
    short = f"peak {size(peak)}"
    full = f"{short} of {size(cap)}" if cap else short
    lines = [f"busy {percent(busy)}" if used else "no clusters"]
    return [*lines, full if design.width(full, 12) <= room else short] if used or peak else lines


def _axis(svg: Svg, layout: Layout) -> None:
    span = layout.height / layout.second if layout.second else 0.0
    moments, unit = ticks(span, layout.height, 64.0)
    x = LEFT - 14
    svg.text(x, layout.top - 18, unit, 12, QUIET, anchor="end")
    for when, text in moments:
        y = layout.y(when)
        svg.line((LEFT - 8, y), (layout.right, y), "grid")
        if layout.bottom - y > 17 or not span:
            svg.text(x, y + 4, text, 12, QUIET, anchor="end")
    svg.line((LEFT - 8, layout.bottom), (layout.right, layout.bottom), "end")
    if span:
        end = seconds(span).removesuffix(f" {unit}")
        svg.text(x, layout.bottom + 4.5, end, 13, bold=True, anchor="end")


def _margin(svg: Svg, layout: Layout) -> None:
    """Draw beside the axis what the critical path spends its time on."""
    x = LEFT - 58
    svg.text(x - 2, layout.top - 18, "critical path", 12, QUIET, anchor="end")
    for section in sections(layout.plan):
        top, bottom = layout.y(section.start) + 1, layout.y(section.end) - 1
        if bottom - top >= 3:
            svg.path(trace([(x, top), (x + 5, top), (x + 5, bottom), (x, bottom)]), "bracket")
        if bottom - top >= 14:
            color = QUIET if section.kind == "compute" else WAIT
            text = f"{section.kind} {seconds(section.end - section.start)}"
            label = Label(x - 4, (top + bottom) / 2 + 4, text, 12, color, anchor="end")
            for free in layout.space.first([[label]], pad=1.0):
                svg.label(free)


def _box(svg: Svg, layout: Layout, box: Box, index: int) -> None:
    card, shade = box.card, layout.columns[box.card.device].shade
    fill = fill_of(shade, card.phase)
    x, y, w, h = box.x + 2, box.y + 0.75, box.w - 4, max(box.h - 1.5, 0.8)
    tooltip = f"{card.title}: {seconds(card.start)} → {seconds(card.end)}"
    with svg.group(tooltip, data_facts=f"b{index}", data_critical="" if box.critical else None):
        if h < 2:
            svg.rect(x, y, w, h, fill=shade.hue)
            return
        if h < 4:
            svg.rect(x, y, w, h, fill=fill, stroke=shade.hue, stroke_width=0.8)
            return
        if card.copies and h > 14:
            for depth in (6, 3):
                svg.rect(x + depth, y + depth, w - 3, h - 3, rx=3, fill="#FFFFFF", stroke=shade.hue)
        corner = 3 if h > 8 else 1
        svg.rect(x, y, w, h, rx=corner, fill=fill)
        at_left, at_right = strips(card.phase)
        for at, edge in [(x, x + 10.5)] * at_left + [(x + w - 10.7, x + w - 10.5)] * at_right:
            svg.pattern(shade, at + 0.7, y + 0.7, 9.3, h - 1.4)
            svg.line((edge, y), (edge, y + h), stroke=shade.hue, stroke_width=0.8)
        svg.rect(x, y, w, h, rx=corner, fill="none", stroke=shade.hue, stroke_width=1.3)


def _arrow(svg: Svg, layout: Layout, arrow: Arrow, index: int) -> None:
    start, end, moved = arrow.start, arrow.end, arrow.transfer
    if arrow.ready_y is not None:
        svg.line((start[0], arrow.ready_y), start, "wait")
    span = f"{seconds(moved.start)} → {seconds(moved.end)}"
    tooltip = f"{layout.plan.words.value(moved.value)}: {size(moved.bytes)}, {span}"
    with svg.group(tooltip, data_facts=f"t{index}", data_critical="" if arrow.critical else None):
        svg.line(start, end, "edge")
        svg.arrow(start, end, QUIET, 1.6)


def _critical(svg: Svg, layout: Layout) -> None:
    few = sum(kind == "copy" for kind, _ in layout.pieces) <= _CALM
    wide = 4.0 if few else 1.6
    with svg.group(style="critical", pointer_events="none"):
        for kind, points in layout.pieces:
            if kind == "bus":
                svg.path(trace(points) if few else "", "bus")
            elif kind == "copy":
                svg.arrow(points[0], points[1], INK, wide)
            else:
                svg.path(trace(points), stroke_width=wide)
