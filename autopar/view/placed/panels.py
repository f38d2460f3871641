"""What stands above the lanes of a placed graph: title, header strip with its figures, legend."""

from __future__ import annotations

from ...ir.graph import SUM
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...text.tables import percent, seconds, size
from ..drawing import fonts
from ..drawing.palette import BAR, BAR_PALE, BRACKET, INK, LANE, QUIET, WAIT, WAIT_FILL, fill_of, strips
from ..drawing.svg import Svg
from ..report.names import baseline, slow_down
from ..report.phases import hidden
from .layout import MARGIN, Layout, tick_text, ticks


def title(svg: Svg, text: str, under: str, label: str) -> None:
    """The title, a line under it, and the badge that says what the figures are."""
    room = svg.width - 2 * MARGIN
    if label:
        wide = fonts.width(label, 12, True) + 36
        room -= wide + 24
        x = svg.width - MARGIN - wide
        svg.rect(x, 25, wide, 27, rx="13.5", fill=WAIT_FILL, stroke="#F0B58F", stroke_width="1.2")
        svg.text(x + wide / 2, 43, label, 12, WAIT, bold=True, anchor="middle")
    svg.text(MARGIN, 46, fonts.fit(text, room, 24, True), 24, bold=True)
    svg.text(MARGIN, 68, fonts.fit(under, svg.width - 2 * MARGIN, 13), 13, QUIET)


def figure(svg: Svg, x: float, number: str, unit: str, what: str) -> float:
    """A key number with its unit in grey over what it is; returns the x after it."""
    svg.number(x, 116, number, unit)
    after = x + fonts.width(number, 24, True) + 5
    svg.text(x, 137, what, 12, QUIET)
    return max(after + fonts.width(unit, 14), x + fonts.width(what, 12)) + 34


def strip(svg: Svg) -> None:
    """The pale strip under the key numbers."""
    svg.rect(MARGIN, 86, svg.width - 2 * MARGIN, 64, rx="6", fill=LANE)


def split_unit(text: str) -> tuple[str, str]:
    """`4.90 ms` as its number and its unit."""
    number, _, unit = text.partition(" ")
    return number, unit


def header(svg: Svg, layout: Layout, timeline: Timeline | None) -> None:
    """The numbers everything is judged by: predicted, measured, bound, single device, moved; and one bar."""
    plan = layout.plan
    strip(svg)
    x = MARGIN + 20
    x = figure(svg, x, *split_unit(seconds(plan.makespan)), "predicted")
    if timeline:
        slow = slow_down(plan)
        what = "measured" if slow == 1 else f"measured, clock × {slow:g}"
        x = figure(svg, x, *split_unit(seconds(timeline.makespan)), what)
    if plan.period is not None:
        x = figure(svg, x, *split_unit(seconds(plan.period)), "period: from call to call")
    if plan.lower_bound:
        what = "lower bound" if plan.period is None else "bound of the period"
        x = figure(svg, x, *split_unit(seconds(plan.lower_bound)), f"{what} (gap {percent(plan.gap)})")
    single = baseline(plan)
    if single:
        x = figure(svg, x, *split_unit(seconds(single[1])), f"best single device ({single[0]})")
    if any(task.phase == "backward" and task.target == SUM for task in plan.costed.graph.tasks):
        x = figure(
            svg, x, *split_unit(percent(hidden(plan, plan.timeline()))), "of reduction behind backward"
        )
    count = len(plan.transfers)
    what = f"moved, {count} transfer{'' if count == 1 else 's'}"
    x = figure(svg, x, *split_unit(size(plan.moved)), what)
    end = svg.width - MARGIN - 20
    if single and single[1] and plan.makespan and plan.period is None:
        gain = single[1] / plan.makespan
        shares = f"critical path: {percent(layout.found.compute_s / plan.makespan)} compute, "
        shares += f"{percent(layout.found.transfer_s / plan.makespan)} transfer"
        wide = max(fonts.width(shares, 12), 210.0)
        if end - wide - x > 0:
            better = "of one device's time" if gain < 1.005 else "faster than one device"
            number = f"{plan.makespan / single[1]:.2f}×" if gain < 1.005 else f"{gain:.2f}×"
            figure(svg, end - wide, number, better, shares)
            end -= wide + 34
    if end - x >= 170:
        _race(svg, plan, x, min(end - x, 420.0))


def _race(svg: Svg, plan: Plan, x: float, wide: float) -> None:
    """Predicted in dark and the single device in grey, the shorter over the longer, the bound as a tick, on one
    scale."""
    single = baseline(plan)
    most = max(plan.makespan, single[1] if single else 0.0, plan.lower_bound)
    if not most:
        return
    scale = wide / most
    bars = [(plan.makespan, "predicted", BAR, "#FFFFFF", True)]
    if single:
        bars.append((single[1], "one device", BAR_PALE, INK, False))
    bars.sort(key=lambda bar: -bar[0])
    for index, (time, text, fill, ink, bold) in enumerate(bars):
        svg.rect(x, 108, time * scale, 16, fill=fill)
        last = index == len(bars) - 1
        room = time * scale if last else (time - bars[index + 1][0]) * scale
        long = fonts.width(text, 11, bold) + 14
        # The bound is below all else: its tick stands in the last bar, before the text where it would be in it.
        tick = plan.lower_bound * scale if last and plan.period is None else 0.0
        behind = tick + 2 if tick < long else 0.0
        if room - behind > long:
            at = x + behind + 7 if last else x + time * scale - 7
            svg.text(at, 120, text, 11, ink, anchor="start" if last else "end", bold=bold)
    if plan.lower_bound and plan.period is None:
        at = x + plan.lower_bound * scale
        svg.line((at, 102), (at, 128), stroke="#FFFFFF", stroke_width="5")
        svg.line((at, 102), (at, 128), stroke=INK, stroke_width="2.2")
        anchor = "end" if at > x + wide - 30 else "start" if at < x + 30 else "middle"
        svg.text(at, 98, "bound", 11, anchor=anchor)
    moments, unit, size_of_unit = ticks(most, wide, 70)
    step = moments[1] if len(moments) > 1 else 0.0
    for index, when in enumerate(moments):
        text = tick_text(when, step, size_of_unit) + (f" {unit}" if not index else "")
        svg.text(x + when * scale, 143, text, 10.5, QUIET, anchor="start" if not index else "middle")


def legend(svg: Svg, layout: Layout, x: float, y: float) -> float:
    """How to read the picture; returns where the next panel may begin."""
    svg.text(x, y, "How to read", 13, bold=True)
    top = y + 24
    svg.line((x, top - 4), (x + 34, top - 4), stroke=INK, stroke_width="4")
    svg.text(x + 46, top, "critical path", 12)
    svg.line(
        (x, top + 18),
        (x + 34, top + 18),
        stroke=INK,
        stroke_width="3.4",
        stroke_dasharray="0.1 6",
        stroke_linecap="round",
    )
    svg.text(x + 46, top + 22, "it goes on by the bus", 12)
    svg.line((x + 4, top + 40), (x + 30, top + 40), stroke=QUIET, stroke_width="1.6")
    svg.arrow((x, top + 40), (x + 34, top + 40), QUIET, 9)
    svg.add("circle", cx=x + 3, cy=top + 40, r="3", fill="#FFFFFF", stroke=QUIET, stroke_width="1.5")
    svg.text(x + 46, top + 44, "transfer, slope = its time", 12)
    right = x + 222
    svg.line(
        (right + 12, top - 11), (right + 12, top + 4), stroke=WAIT, stroke_width="2.2", stroke_dasharray="2 3"
    )
    svg.text(right + 34, top, "ready, bus busy", 12)
    svg.line(
        (right + 12, top + 11),
        (right + 12, top + 26),
        stroke=BRACKET,
        stroke_width="1.2",
        stroke_dasharray="2 4",
    )
    svg.text(right + 34, top + 22, "idle", 12)
    if layout.plan.words.training:
        _phases(svg, layout, x, top + 66)
        top += 26
    elif any(len(arrow.transfers) > 1 for arrow in layout.arrows):
        svg.path(f"M{right} {top + 36:.2f}l26 4v9l-26 -4Z", fill=QUIET, fill_opacity="0.25")
        svg.text(right + 34, top + 44, "several transfers", 12)
    return top + 66


def _phases(svg: Svg, layout: Layout, x: float, y: float) -> None:
    """The looks of forward, backward, sums and updates."""
    shade = next(iter(layout.columns.values())).shade
    for phase, text in (("forward", "forward"), ("backward", "backward"), ("update", "sum, update")):
        svg.rect(x, y - 11, 34, 14, rx="2", fill=fill_of(shade, phase))
        left, right = strips(phase)
        for at in [x] * left + [x + 27] * right:
            svg.pattern(shade, at, y - 11, 7, 14)
        svg.rect(x, y - 11, 34, 14, rx="2", fill="none", stroke=shade.hue)
        svg.text(x + 42, y, text, 12)
        x += 42 + fonts.width(text, 12) + 24
