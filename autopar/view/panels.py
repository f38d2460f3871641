"""What stands around the lanes of a placed graph: title, header strip, legend, and the panels on the
right."""

from __future__ import annotations

from ..plans import Placed, Plan
from ..tables import percent, seconds, size
from ..timeline import Timeline
from . import fonts
from .facts import device_busy
from .fold import Card
from .layout import MARGIN, Layout, tick_text, ticks
from .names import alternative, module_of, slow_down
from .palette import BAR, BAR_PALE, BRACKET, GRID, INK, LANE, QUIET, WAIT, WAIT_FILL
from .svg import Svg

_MOST_ROWS = 6


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
    if plan.lower_bound:
        x = figure(svg, x, *split_unit(seconds(plan.lower_bound)), f"lower bound (gap {percent(plan.gap)})")
    single = plan.best_single
    if single:
        x = figure(svg, x, *split_unit(seconds(single[1])), f"best single device ({single[0]})")
    count = len(plan.transfers)
    what = f"moved, {count} transfer{'' if count == 1 else 's'}"
    x = figure(svg, x, *split_unit(size(plan.moved)), what)
    end = svg.width - MARGIN - 20
    if single and plan.makespan:
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
    """Predicted in dark over the single device in grey, the bound as a tick, on one scale."""
    single = plan.best_single
    most = max(plan.makespan, single[1] if single else 0.0, plan.lower_bound)
    if not most:
        return
    scale = wide / most
    if single:
        svg.rect(x, 108, single[1] * scale, 16, fill=BAR_PALE)
        text = "one device"
        room = (single[1] - plan.makespan) * scale
        if room > fonts.width(text, 11) + 12:
            svg.text(x + single[1] * scale - 6, 120, text, 11, anchor="end")
    svg.rect(x, 108, plan.makespan * scale, 16, fill=BAR)
    if plan.makespan * scale > fonts.width("predicted", 11, True) + 14:
        svg.text(x + 7, 120, "predicted", 11, "#FFFFFF", bold=True)
    if plan.lower_bound:
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
    if any(box.card.deep for box in layout.boxes):
        shade = next(iter(layout.columns.values())).shade
        svg.rect(right - 1, top + 35, 13, 12, fill=shade.fill, stroke=shade.hue)
        svg.rect(right + 13, top + 35, 13, 12, fill=shade.deep, stroke=shade.hue)
        svg.text(right + 34, top + 44, "forward, backward", 12)
    elif any(len(arrow.transfers) > 1 for arrow in layout.arrows):
        svg.path(f"M{right} {top + 36:.2f}l26 4v9l-26 -4Z", fill=QUIET, fill_opacity="0.25")
        svg.text(right + 34, top + 44, "several transfers", 12)
    return top + 66


def panel(svg: Svg, x: float, y: float, w: float, h: float) -> None:
    """A white card with a hairline."""
    svg.rect(x, y, w, h, rx="8", fill="#FFFFFF", stroke=BAR_PALE, stroke_width="1.2")


def devices(svg: Svg, layout: Layout, timeline: Timeline | None, x: float, y: float, w: float) -> float:
    """Busy share and peak memory of each device; returns where the next panel may begin."""
    plan = layout.plan
    rows = list(layout.columns.values())
    busy = device_busy(plan.timeline())
    real = device_busy(timeline) if timeline else {}
    height = 48.0 + 44 * len(rows)
    panel(svg, x, y, w, height)
    svg.text(x + 18, y + 27, "Devices", 13, bold=True)
    svg.text(x + w - 18, y + 27, "busy · peak memory", 12, QUIET, anchor="end")
    bar, top = x + 136, y + 44
    long = w - 136 - 14 - 128
    for column in rows:
        device = plan.costed.machine.device[column.device]
        svg.swatch(column.shade, x + 18, top + 5, 20, 18)
        svg.text(x + 46, top + 19, fonts.fit(device.name, 84, 13, True), 13, bold=True)
        share = busy.get(device.name, 0.0)
        svg.rect(bar, top + 3, long, 8, rx="2", fill=GRID)
        svg.rect(bar, top + 3, long * min(1.0, share), 8, rx="2", fill=column.shade.hue)
        text = percent(share) + (f", ran {percent(real[device.name])}" if device.name in real else "")
        svg.text(bar + long + 8, top + 11, fonts.fit(text, 124, 11), 11, QUIET)
        peak, cap = plan.peaks.get(device.name, 0), device.memory_bytes
        svg.rect(bar, top + 18, long, 8, rx="2", fill=GRID)
        if cap:
            svg.rect(bar, top + 18, long * min(1.0, peak / cap), 8, rx="2", fill="#8792A3")
        text = f"{size(peak)} of {size(cap)}" if cap else f"{size(peak)}, no cap"
        svg.text(bar + long + 8, top + 26, fonts.fit(text, 124, 11), 11, QUIET)
        top += 44
    return y + height + 20


def candidates(svg: Svg, plan: Plan, x: float, y: float, w: float) -> float:
    """The plans that were in the race, best first; returns where the next panel may begin."""
    order = sorted(plan.candidates, key=lambda c: (c.makespan is None, c.makespan or 0.0, c.policy, c.split))
    if len(order) < 2:
        return y
    shown = order[:6]
    height = 46.0 + 30 * len(shown) + (18 if len(shown) < len(order) else 0)
    panel(svg, x, y, w, height)
    svg.text(x + 18, y + 27, "Plans compared", 13, bold=True)
    svg.text(x + w - 18, y + 27, "predicted", 12, QUIET, anchor="end")
    most = max((c.makespan or 0.0 for c in shown), default=0.0) or 1.0
    top = y + 40
    for index, candidate in enumerate(shown):
        name = ", ".join(filter(None, (candidate.policy, candidate.split)))
        if fonts.width(name, 12, not index) > 158:
            name = ", ".join(filter(None, (candidate.policy, candidate.split.partition(":")[0])))
        svg.text(x + 18, top + 17, fonts.fit(name, 158, 12, not index), 12, bold=not index)
        bar, long = x + 184, w - 184 - 18 - 72
        if candidate.makespan is None:
            svg.text(
                bar, top + 17, fonts.fit(candidate.note or "not feasible", w - 184 - 18, 11.5), 11.5, QUIET
            )
        else:
            svg.rect(
                bar,
                top + 7,
                long * candidate.makespan / most,
                11,
                rx="2",
                fill=BAR if not index else BAR_PALE,
            )
            svg.text(x + w - 18, top + 17, seconds(candidate.makespan), 12, anchor="end", bold=not index)
        top += 30
    if len(shown) < len(order):
        svg.text(x + 18, top + 12, f"and {len(order) - len(shown)} more", 11.5, QUIET)
    return y + height + 20


def verdict(plan: Plan) -> str:
    """For a plan on one device: why not on several."""
    if len({placed.device for placed in plan.placed}) != 1 or len(plan.costed.machine.devices) == 1:
        return ""
    other = alternative(plan)
    if other is None or not other.makespan or other.makespan <= plan.makespan:
        return "All on one device."
    return (
        f"All on one device: the best plan over several takes {seconds(other.makespan - plan.makespan)} more."
    )


def example(layout: Layout) -> Placed | None:
    """The run whose reasons are shown without hover: the longest of the critical path that had a choice."""
    hot = {
        step.run
        for step in map(layout.found.steps.__getitem__, layout.found.path)
        if isinstance(step, Placed)
    }
    choosy = [
        placed
        for placed in layout.plan.placed
        if placed.run in layout.plan.reason and len(layout.plan.reason[placed.run].choices) > 1
    ]
    return min(choosy, key=lambda p: (p.run not in hot, p.start - p.end, p.start), default=None)


def why(svg: Svg, layout: Layout, placed: Placed | None, x: float, y: float, w: float) -> float:
    """The reasons of one run as bars, one for each device: waiting for inputs, for the device, running."""
    if placed is None:
        return y
    plan = layout.plan
    reason = plan.reason[placed.run]
    choices = sorted(reason.choices, key=lambda c: (c.device != placed.device, c.end is None, c.end or 0.0))[
        :6
    ]
    lines = fonts.wrap(reason.text, w - 36, 12, 3)
    height = 104.0 + 16 * len(lines) + 26 * len(choices) + 24
    panel(svg, x, y, w, height)
    shade = layout.columns[placed.device].shade
    tag = fonts.width(placed.device, 13, True) + 28
    svg.text(x + 18, y + 28, fonts.fit(placed.run, w - 46 - tag, 15, True), 15, bold=True)
    svg.swatch(shade, x + w - 18 - tag, y + 15, 18, 17)
    svg.text(x + w - 18, y + 28, placed.device, 13, bold=True, anchor="end")
    module = module_of(plan, placed.run)
    source = plan.costed.graph.task[plan.costed.run[placed.run].tasks[0]].source
    svg.text(x + 18, y + 48, fonts.fit(" · ".join(filter(None, (module, source))), w - 36, 11.5), 11.5, QUIET)
    svg.text(x + 18, y + 74, "Why here?", 13, bold=True)
    for index, line in enumerate(lines):
        svg.text(x + 18, y + 93 + 16 * index, line, 12, QUIET)
    low = min(min(c.arrives, c.free) for c in choices)
    high = max([c.end for c in choices if c.end is not None], default=low)
    bar, long = x + 108, w - 108 - 18 - 132
    scale = long / (high - low) if high > low else 0.0
    own = next((c.end for c in choices if c.device == placed.device), None)
    top = y + 94 + 16 * len(lines)
    for choice in choices:
        here = choice.device == placed.device
        look = layout.columns[choice.device].shade
        svg.text(x + 18, top + 16, fonts.fit(choice.device, 84, 12, here), 12, bold=here)
        if choice.end is None:
            svg.text(
                bar, top + 16, fonts.fit(choice.why or "cannot run here", x + w - 18 - bar, 11.5), 11.5, QUIET
            )
        else:
            begin = max(choice.arrives, choice.free)
            at = [bar + (when - low) * scale for when in (choice.arrives, begin, choice.end)]
            svg.line((bar, top + 12), (at[0], top + 12), stroke="#5A6475", stroke_width="5")
            svg.line(
                (at[0], top + 12), (at[1], top + 12), stroke=WAIT, stroke_width="2", stroke_dasharray="2 3"
            )
            svg.rect(
                at[1], top + 5, max(1.0, at[2] - at[1]), 14, rx="2", fill=look.hue if here else look.fill
            )
            if not here:
                svg.pattern(look, at[1], top + 5, at[2] - at[1], 14)
                svg.rect(at[1], top + 5, max(1.0, at[2] - at[1]), 14, rx="2", fill="none", stroke=look.hue)
            end = seconds(choice.end)
            svg.text(x + w - 18 - 66, top + 16, end, 12, anchor="end", bold=here)
            more = "chosen" if here else "" if own is None else _signed(choice.end - own)
            svg.text(x + w - 18, top + 16, more, 11, look.text if here else QUIET, anchor="end", bold=here)
        top += 26
    svg.line((x + 20, top + 12), (x + 32, top + 12), stroke="#5A6475", stroke_width="5")
    svg.text(x + 38, top + 16, "inputs come", 11.5, QUIET)
    svg.line((x + 124, top + 12), (x + 138, top + 12), stroke=WAIT, stroke_width="2", stroke_dasharray="2 3")
    svg.text(x + 144, top + 16, "device busy", 11.5, QUIET)
    svg.rect(x + 228, top + 6, 14, 12, rx="2", fill=shade.fill, stroke=shade.hue)
    svg.text(x + 248, top + 16, "run, and its end", 11.5, QUIET)
    return y + height + 20


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "−") + seconds(abs(value))


def stacks(layout: Layout) -> list[Card]:
    """The stacked cards of the picture, by start."""
    found = [box.card for box in layout.boxes if box.card.copies]
    return sorted(found, key=lambda card: (card.start, card.lane))


def repeats(svg: Svg, layout: Layout, x: float, y: float, w: float) -> float:
    """Where the copies of each stack of repeated blocks are, and what the slowest holds."""
    cards = stacks(layout)
    if not cards:
        return y
    paths = list(dict.fromkeys(card.module for card in cards))[:2]
    held = {path: [card for card in cards if card.module == path] for path in paths}
    rows = {path: min(len(group), _MOST_ROWS) for path, group in held.items()}
    height = 44.0 + sum(88 + 28 * count for count in rows.values())
    panel(svg, x, y, w, height)
    svg.text(x + 18, y + 27, "Repeated blocks fold into one", 13, bold=True)
    top = y + 42
    for path in paths:
        copies = [copy for card in held[path] for copy in card.copies]
        total = f"× {len(copies)}, {seconds(sum(copy.busy for copy in copies))} in all"
        room = w - 50 - fonts.width(total, 12)
        svg.text(x + 18, top + 14, fonts.fit(path, room, 12, True), 12, bold=True)
        svg.text(x + w - 18, top + 14, total, 12, QUIET, anchor="end")
        top += 24
        for card in held[path][: rows[path]]:
            shade = layout.columns[card.device].shade
            text = fonts.fit(
                f"{card.title.rpartition(' … ')[0].rpartition(' ')[2]} … {card.title.rpartition(' ')[2]}",
                70,
                11.5,
            )
            cell = min(22.0, (w - 36 - 160) / len(card.copies))
            for index in range(len(card.copies)):
                svg.swatch(shade, x + 18 + index * cell, top, max(1.5, cell - 2), 18)
            svg.text(x + w - 18 - 84, top + 13, text, 11.5, QUIET, anchor="end")
            svg.text(x + w - 18, top + 13, fonts.fit(card.device, 78, 11.5), 11.5, shade.text, anchor="end")
            top += 28
        slow = max(copies, key=lambda copy: copy.busy)
        text = f"slowest {slow.name}, {seconds(slow.busy)}:"
        svg.text(x + 18, top + 12, fonts.fit(text, w - 36, 11.5), 11.5, QUIET)
        _inside(svg, layout, slow.runs, x + 18, top + 20, w - 36)
        top += 64
    return y + height + 20


def _inside(svg: Svg, layout: Layout, runs: tuple[str, ...], x: float, y: float, w: float) -> None:
    """The runs of one block as a bar, the longest named."""
    places = [layout.plan.place[run] for run in runs]
    total = sum(placed.end - placed.start for placed in places) or 1.0
    shade = layout.columns[places[0].device].shade
    at = x
    for placed in places:
        long = (placed.end - placed.start) / total * w
        svg.rect(at, y, long, 18, fill=shade.fill, stroke=shade.hue, stroke_width="0.8")
        tail = module_of(layout.plan, placed.run).rpartition(".")[2]
        text = placed.run if not tail or tail.isdecimal() else tail
        if fonts.width(text, 11) + 8 <= long:
            svg.text(at + long / 2, y + 13, text, 11, anchor="middle")
        at += long
