"""The placed graph as SVG: columns are devices, time runs down, slopes are transfers, one black thread
is critical."""

from __future__ import annotations

from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...text.tables import counted, percent, seconds, size
from ..drawing import fonts
from ..drawing.palette import BRACKET, GRID, INK, LANE, QUIET, WAIT, fill_of, strips
from ..drawing.svg import Svg, trace
from ..report.facts import device_busy
from . import panels, sidebar
from .labels import box_labels, brackets, free_labels
from .layout import LEFT, MARGIN, PANEL, WIDTH, Arrow, Box, Layout, lay_out, tick_text, ticks

_FOOT = 60.0
_HEAD = 158.0
_MOST_NAMED = 8
NOTES = (
    "autopar · predicted: end of the plan · bound: no plan of this graph is shorter here · gap: how far above it · "
    "busy: share of the predicted time a device computes · moved: bytes between devices in one call"
)
_CALM = 60
"""A thread of more transfers than this is drawn thinner, so that it stays a line."""


def placed_svg(plan: Plan, timeline: Timeline | None = None) -> str:
    """The picture of a plan; a measured `timeline` adds its figures."""
    layout = lay_out(plan)
    head, chart, side = placed_pieces(layout, timeline)
    low = max(piece.origin[1] + piece.height for piece in (chart, side))
    svg = Svg(head.width, low + _FOOT, head.title)
    svg.parts = [*head.parts, *side.parts, *chart.parts]
    svg.text(MARGIN, svg.height - 22, fonts.fit(NOTES, svg.width - 2 * MARGIN, 12), 12, QUIET)
    left_out = [undrawn(layout)] if layout.undrawn else []
    if layout.unnamed:
        left_out.append(
            f"{counted(len(layout.unnamed), 'short run')} not named: point at them, or see the page (.html)"
        )
    svg.text(MARGIN, svg.height - 40, " · ".join(left_out), 12, QUIET)
    return str(svg)


def undrawn(layout: Layout) -> str:
    """Which transfers have an arrow of their own, or a part in one, where not all have."""
    drawn = sum(len(arrow.transfers) for arrow in layout.arrows)
    return f"{drawn:,} of {drawn + layout.undrawn:,} transfers drawn, those of the most bytes"


def placed_pieces(layout: Layout, timeline: Timeline | None = None) -> tuple[Svg, Svg, Svg]:
    """The pieces of the picture of a layout, each with the part of the whole that it takes: title and figures, the
    chart, the panels beside it. Boxes and arrows are groups with `data-card`, which the page's cards hang on."""
    side = max(layout.right + 44, WIDTH - MARGIN - PANEL)
    title = f"placed graph of {layout.plan.costed.graph.name}"
    head = Svg(side + PANEL + MARGIN, _HEAD, title)
    chart = Svg(side - 12, layout.bottom + 40 - _HEAD, f"chart of the {title}")
    chart.origin = (0.0, _HEAD)
    beside = Svg(PANEL + MARGIN + 12, 0, f"panels of the {title}")
    beside.origin = (side - 12, _HEAD)
    _head(head, layout, timeline)
    beside.height = _beside(beside, layout, timeline, side) - _HEAD
    _chart(chart, layout)
    return head, chart, beside


def _head(svg: Svg, layout: Layout, timeline: Timeline | None) -> None:
    plan = layout.plan
    split = plan.costed.graph.split
    tasks, runs = counted(len(plan.costed.graph.tasks), "task"), counted(len(plan.placed), "run")
    under = f"{tasks} in {runs}" if plan.costed.machine.queued else tasks
    under += f", placed by {plan.policy}"
    under += f", batch in {split}. " if split else ". "
    panels.title(
        svg,
        f"{plan.costed.graph.name}: placed graph",
        under + (sidebar.verdict(plan) or "Time runs downward."),
        plan.costed.machine.label,
    )
    panels.header(svg, layout, timeline)


def _beside(svg: Svg, layout: Layout, timeline: Timeline | None, x: float) -> float:
    y = panels.legend(svg, layout, x, 188)
    y = sidebar.why(svg, layout, sidebar.example(layout), x, y + 12, PANEL)
    y = sidebar.devices(svg, layout, timeline, x, y, PANEL)
    y = sidebar.repeats(svg, layout, x, y, PANEL)
    return sidebar.candidates(svg, layout.plan, x, y, PANEL)


def _chart(svg: Svg, layout: Layout) -> None:
    _lanes(svg, layout)
    _axis(svg, layout)
    free = free_labels(layout)
    _margin(svg, layout)
    for gap in layout.gaps:
        if gap.h >= 20:
            x = gap.x + gap.w / 2
            svg.line(
                (x, gap.y + 5),
                (x, gap.y + gap.h - 5),
                stroke="#C5CBD5",
                stroke_width="1.2",
                stroke_dasharray="1.5 4",
            )
    svg.open(opacity="0.14")
    for arrow in layout.arrows:
        _band(svg, arrow)
    svg.close()
    for index, box in enumerate(layout.boxes):
        _box(svg, layout, box, index)
    for index, arrow in enumerate(layout.arrows):
        _arrow(svg, layout, arrow, index)
    _thread(svg, layout)
    for arrow in layout.arrows:
        if not arrow.critical:
            y = (arrow.y1 + arrow.y1_last) / 2
            svg.add("circle", cx=arrow.x1, cy=y, r="3.4", fill="#FFFFFF", stroke=QUIET, stroke_width="1.6")
    for label in free:
        if label.leader:
            svg.polyline(list(label.leader), stroke=BRACKET, stroke_width="1")
        if label.anchor == "middle":
            r = label.rect
            svg.rect(r.x - 4, r.y - 1, r.w + 8, r.h + 2, fill=LANE)
        svg.text(
            label.x,
            label.y,
            label.text,
            label.size,
            label.color,
            bold=label.bold,
            anchor=label.anchor,
            halo=label.halo,
        )


def _lanes(svg: Svg, layout: Layout) -> None:
    busy = device_busy(layout.plan.timeline())
    for column in layout.columns.values():
        svg.swatch(column.shade, column.x + 2, 177, 28, 22)
        share = f"busy {percent(busy.get(column.device, 0.0))}" if column.lanes else "no runs"
        room = column.w - 44 - fonts.width(share, 12)
        size = next((s for s in (17.0, 15.0, 13.0) if fonts.width(column.device, s, True) <= room), 0.0)
        if size:
            svg.text(column.x + 38, 194, column.device, size, bold=True)
            svg.text(column.right, 194, share, 12, QUIET, anchor="end")
        else:
            svg.text(column.x + 38, 190, fonts.fit(column.device, column.w - 40, 13, True), 13, bold=True)
            svg.text(column.x + 38, 205, share, 12, QUIET)
        for lane, x, w in column.lanes or (("", column.x, column.w),):
            svg.rect(x, layout.top, w, layout.height, fill=LANE)
            if len(column.lanes) > 1:
                svg.text(
                    x + w / 2, layout.top - 10, f"lane {lane.rsplit('/', 1)[1]}", 11.5, QUIET, anchor="middle"
                )


def _axis(svg: Svg, layout: Layout) -> None:
    span = layout.height / layout.second if layout.second else 0.0
    moments, unit, scale = ticks(span, layout.height)
    step = moments[1] if len(moments) > 1 else span
    x = LEFT - 14
    svg.text(x, layout.top - 18, unit, 12, QUIET, anchor="end")
    for when in moments:
        y = layout.y(when)
        svg.line((LEFT - 8, y), (layout.right, y), stroke=GRID, stroke_width="1")
        if layout.bottom - y > 17 or not span:
            svg.text(x, y + 4, tick_text(when, step, scale), 12, QUIET, anchor="end")
    svg.line((LEFT - 8, layout.bottom), (layout.right, layout.bottom), stroke=INK, stroke_width="1.6")
    if span:
        end, end_unit = panels.split_unit(seconds(span))
        text = end if end_unit == unit else tick_text(span, step / 10, scale)
        svg.text(x, layout.bottom + 4.5, text, 13, bold=True, anchor="end")


def _margin(svg: Svg, layout: Layout) -> None:
    found = brackets(layout)
    if found:
        svg.text(LEFT - 87, layout.top - 18, "critical path", 12, QUIET, anchor="end")
    x = LEFT - 78
    for top, bottom, labels in found:
        points = [(x, top + 1), (x + 5, top + 1), (x + 5, bottom - 1), (x, bottom - 1)]
        svg.polyline(points, stroke=BRACKET, stroke_width="1.2")
        for label in labels:
            svg.text(
                label.x, label.y, label.text, label.size, label.color, bold=label.bold, anchor=label.anchor
            )


def _box(svg: Svg, layout: Layout, box: Box, index: int) -> None:
    card, shade = box.card, layout.columns[box.card.device].shade
    fill = fill_of(shade, card.phase)
    x, y, w, h = box.x + 2, box.y + 0.75, box.w - 4, max(box.h - 1.5, 0.8)
    svg.open(data_card=f"b{index}")
    svg.tooltip(f"{card.title}: {seconds(card.start)} → {seconds(card.end)}")
    if card.copies and h > 14:
        for depth in (2, 1):
            svg.rect(x + 3.0 * depth, y + 3.0 * depth, w - 3, h - 3, rx="3", fill="#FFFFFF", stroke=shade.hue)
    if h < 4:
        svg.rect(
            x,
            y,
            w,
            h,
            fill=shade.hue if h < 2 else fill,
            stroke=shade.hue if h >= 2 else None,
            stroke_width="0.8",
        )
        svg.close()
        return
    svg.rect(x, y, w, h, rx="3" if h > 8 else "1", fill=fill)
    at_left, at_right = strips(card.phase)
    for at, edge in [(x, x + 10.5)] * at_left + [(x + w - 10.7, x + w - 10.5)] * at_right:
        svg.pattern(shade, at + 0.7, y + 0.7, 9.3, h - 1.4)
        svg.line((edge, y), (edge, y + h), stroke=shade.hue, stroke_width="0.8")
    svg.rect(x, y, w, h, rx="3" if h > 8 else "1", fill="none", stroke=shade.hue, stroke_width="1.3")
    labels = box_labels(layout, box)
    for label in labels:
        svg.text(label.x, label.y, label.text, label.size, label.color, bold=label.bold, anchor=label.anchor)
    if card.copies and box.h >= 40 and labels:
        text = f"× {len(card.copies)}"
        wide = fonts.width(text, 12, True) + 16
        right = box.x + box.w - 9 - 10 * strips(card.phase)[1]
        middle = labels[-1].y - 4
        svg.rect(right - wide, middle - 9, wide, 18, rx="9", fill=INK)
        svg.text(right - wide / 2, middle + 4, text, 12, "#FFFFFF", bold=True, anchor="middle")
    svg.close()


def _band(svg: Svg, arrow: Arrow) -> None:
    """Under the boxes, the time over which several folded transfers run; where bands meet they are one."""
    if len(arrow.transfers) > 1:
        one, other = (arrow.x1, arrow.y1), (arrow.x2, arrow.y2)
        corners = [one, other, (arrow.x2, arrow.y2_last), (arrow.x1, arrow.y1_last)]
        svg.path(trace(corners) + "Z", fill=QUIET, stroke="#FFFFFF", stroke_width="0.5")


def _arrow(svg: Svg, layout: Layout, arrow: Arrow, index: int) -> None:
    start = (arrow.x1, (arrow.y1 + arrow.y1_last) / 2)
    end = (arrow.x2, (arrow.y2 + arrow.y2_last) / 2)
    if arrow.ready_y is not None:
        svg.line(
            (arrow.x1, arrow.ready_y),
            start,
            stroke=WAIT,
            stroke_width="2.4",
            stroke_dasharray="0.1 4.6",
            stroke_linecap="round",
        )
    svg.open(data_card=f"t{index}")
    names = [layout.plan.words.value(transfer.value) for transfer in arrow.transfers[:_MOST_NAMED]]
    more = f" and {len(arrow.transfers) - len(names)} more" if len(names) < len(arrow.transfers) else ""
    first, last = arrow.transfers[0], max(transfer.end for transfer in arrow.transfers)
    svg.tooltip(f"{'; '.join(names)}{more}: {size(arrow.bytes)}, {seconds(first.start)} → {seconds(last)}")
    svg.line(start, end, stroke="#FFFFFF", stroke_width="4.5", stroke_opacity="0.8")
    dx = -9 if end[0] < start[0] else 9
    slope = (end[1] - start[1]) / (end[0] - start[0])
    svg.line(start, (end[0] - dx * 0.8, end[1] - dx * 0.8 * slope), stroke=QUIET, stroke_width="1.6")
    svg.arrow(start, end, QUIET, 10)
    svg.close()


def _thread(svg: Svg, layout: Layout) -> None:
    wide = 4.0 if sum(piece.kind == "copy" for piece in layout.pieces) <= _CALM else 2.6
    svg.open(fill="none", stroke=INK, stroke_linejoin="round", stroke_linecap="round", pointer_events="none")
    for piece in layout.pieces:
        points = list(piece.points)
        if piece.kind == "bus":
            svg.polyline(points, stroke_width="3.4", stroke_dasharray="0.1 6.5")
        elif piece.kind == "copy":
            (x1, y1), (x2, y2) = points
            length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
            back = 9 / length if length > 9 else 0
            svg.polyline(
                [(x1, y1), (x2 - (x2 - x1) * back, y2 - (y2 - y1) * back)],
                stroke_width=wide,
                stroke_linecap="butt",
            )
            svg.arrow((x1, y1), (x2, y2), INK, 6 + 2 * wide)
        else:
            svg.polyline(points, stroke_width=wide)
    svg.close()
