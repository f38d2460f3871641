"""The panels to the right of a placed graph: reasons of one run, devices, repeated blocks, candidates."""

from __future__ import annotations

from ...ir.plan import Plan
from ...ir.steps import Placed
from ...ir.timeline import Timeline
from ...text.tables import percent, seconds, size
from ..drawing import fonts
from ..drawing.palette import BAR, BAR_PALE, GRID, QUIET, WAIT
from ..drawing.svg import Svg
from ..report.facts import device_busy
from ..report.names import alternative, best_of_each, chosen, module_of
from .fold import Card
from .layout import Layout

_MOST_ROWS = 6
_MOST_KINDS = 3


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
    order = best_of_each(plan)
    if len(order) < 2:
        return y
    mine = chosen(plan)
    shown = order[:6]
    if mine is not None and mine not in shown:
        shown[-1] = mine
    marked = shown.index(mine) if mine is not None else None
    height = 46.0 + 30 * len(shown) + (18 if len(shown) < len(order) else 0)
    panel(svg, x, y, w, height)
    svg.text(x + 18, y + 27, "Plans compared", 13, bold=True)
    svg.text(x + w - 18, y + 27, "predicted", 12, QUIET, anchor="end")
    most = max((c.makespan or 0.0 for c in shown), default=0.0) or 1.0
    top = y + 40
    for index, candidate in enumerate(shown):
        bold = index == marked
        name = ", ".join(filter(None, (candidate.policy, candidate.split)))
        if fonts.width(name, 12, bold) > 158:
            name = ", ".join(filter(None, (candidate.policy, candidate.split.partition(":")[0])))
        svg.text(x + 18, top + 17, fonts.fit(name, 158, 12, bold), 12, bold=bold)
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
                fill=BAR if bold else BAR_PALE,
            )
            svg.text(x + w - 18, top + 17, seconds(candidate.makespan), 12, anchor="end", bold=bold)
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
    module = module_of(plan, placed.run)
    source = plan.costed.graph.task[plan.costed.run[placed.run].tasks[0]].source
    under = " · ".join(filter(None, (module, source)))
    height = (104.0 if under else 84.0) + 16 * len(lines) + 26 * len(choices) + 24
    panel(svg, x, y, w, height)
    shade = layout.columns[placed.device].shade
    tag = fonts.width(placed.device, 13, True) + 28
    svg.text(
        x + 18, y + 28, fonts.fit_words(plan.words.run(placed.run), w - 46 - tag, 15, True), 15, bold=True
    )
    svg.swatch(shade, x + w - 18 - tag, y + 15, 18, 17)
    svg.text(x + w - 18, y + 28, placed.device, 13, bold=True, anchor="end")
    svg.text(x + 18, y + 48, fonts.fit(under, w - 36, 11.5), 11.5, QUIET)
    end = y + height
    y += 74 if under else 54
    svg.text(x + 18, y, "Why here?", 13, bold=True)
    for index, line in enumerate(lines):
        svg.text(x + 18, y + 19 + 16 * index, line, 12, QUIET)
    low = min(min(c.arrives, c.free) for c in choices)
    high = max([c.end for c in choices if c.end is not None], default=low)
    bar, long = x + 108, w - 108 - 18 - 132
    scale = long / (high - low) if high > low else 0.0
    own = next((c.end for c in choices if c.device == placed.device), None)
    top = y + 20 + 16 * len(lines)
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
            svg.text(x + w - 18 - 66, top + 16, seconds(choice.end), 12, anchor="end", bold=here)
            more = "chosen" if here else "" if own is None else _signed(choice.end - own)
            svg.text(x + w - 18, top + 16, more, 11, look.text if here else QUIET, anchor="end", bold=here)
        top += 26
    svg.line((x + 20, top + 12), (x + 32, top + 12), stroke="#5A6475", stroke_width="5")
    svg.text(x + 38, top + 16, "inputs come", 11.5, QUIET)
    svg.line((x + 124, top + 12), (x + 138, top + 12), stroke=WAIT, stroke_width="2", stroke_dasharray="2 3")
    svg.text(x + 144, top + 16, "device busy", 11.5, QUIET)
    svg.rect(x + 228, top + 6, 14, 12, rx="2", fill=shade.fill, stroke=shade.hue)
    svg.text(x + 248, top + 16, "run, and its end", 11.5, QUIET)
    return end + 20


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
    paths = list(dict.fromkeys((card.module, card.phase) for card in cards))[:_MOST_KINDS]
    held = {path: [card for card in cards if (card.module, card.phase) == path] for path in paths}
    rows = {path: min(len(group), _MOST_ROWS) for path, group in held.items()}
    height = 44.0 + sum(88 + 28 * count for count in rows.values())
    panel(svg, x, y, w, height)
    svg.text(x + 18, y + 27, "Repeated blocks fold into one", 13, bold=True)
    top = y + 42
    for path in paths:
        copies = [copy for card in held[path] for copy in card.copies]
        total = f"× {len(copies)}, {seconds(sum(copy.busy for copy in copies))} in all"
        room = w - 50 - fonts.width(total, 12)
        name = f"{path[0]} {path[1]}" if layout.plan.words.training else path[0]
        svg.text(x + 18, top + 14, fonts.fit(name, room, 12, True), 12, bold=True)
        svg.text(x + w - 18, top + 14, total, 12, QUIET, anchor="end")
        top += 24
        for card in held[path][: rows[path]]:
            shade = layout.columns[card.device].shade
            first, last = (card.copies[index].name.rpartition(".")[2] for index in (0, -1))
            text = f"{first} … {last}"
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
        text = layout.plan.words.run(placed.run) if not tail or tail.isdecimal() else tail
        if fonts.width(text, 11) + 8 <= long:
            svg.text(at + long / 2, y + 13, text, 11, anchor="middle")
        at += long
