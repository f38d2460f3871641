"""A plan as text: the dependency graph in DOT for graphviz, and a chart for a terminal."""

from __future__ import annotations

import json

from ..ir.plan import Plan
from ..ir.timeline import Placed, Transfer
from ..system.text import clip, percent, seconds, size
from .drawing.design import INK, QUIET, fill_of, shades
from .report.statistics import busy_shares

_WIDE = 100
_AXIS = 10
_LEGEND = "┃ critical path  ╎ idle  ⇢ transfer: value, from → to, bytes · time  +n more in that slice of time"


def dot_text(plan: Plan) -> str:
    """Return the plan in DOT: devices as clusters, tasks as nodes, values as edges, the critical path in bold."""
    costed, machine = plan.costed, plan.costed.machine
    look = shades((device.name, device.traits.host) for device in machine.devices)
    path = [plan.steps[index] for index in plan.critical.path]
    hot = {step.cluster for step in path if isinstance(step, Placed)}
    hot_moves = {id(step) for step in path}
    moved = {(t.value, t.dst): t for t in plan.transfers}
    title = " · ".join(filter(None, (costed.graph.name, machine.label, seconds(plan.makespan))))
    lines = [
        f"digraph {_quote(costed.graph.name)} {{",
        f'  graph [label={_quote(title)}, labelloc=t, rankdir=TB, fontname="Inter"];',
        f'  node [shape=box, style="filled,rounded", fontname="Inter", fontsize=11, fontcolor="{INK}"];',
        f'  edge [fontname="Inter", fontsize=9, color="{QUIET}", fontcolor="{QUIET}"];',
    ]
    for number, device in enumerate(machine.devices):
        shade = look[device.name]
        nodes = []
        for placed in plan.placed:
            if placed.device == device.name:
                module = costed.graph.task[costed.cluster[placed.cluster].tasks[0]].module
                label = [plan.words.cluster(placed.cluster), module, seconds(placed.end - placed.start)]
                fill = fill_of(shade, plan.words.phase(placed.cluster))
                edge = f'"{INK}", penwidth=3' if placed.cluster in hot else f'"{shade.hue}"'
                text = _quote("\n".join(filter(None, label)))
                wants = f'label={text}, fillcolor="{fill}", color={edge}'
                nodes.append(f"    {_quote(placed.cluster)} [{wants}];")
        if nodes:
            name = f'label={_quote(device.name)}; color="{shade.hue}"; fontcolor="{shade.text}";'
            lines += [f"  subgraph cluster_{number} {{", f"    {name}", *nodes, "  }"]
    for placed in plan.placed:
        cluster = costed.cluster[placed.cluster]
        for value in cluster.reads:
            source = costed.producer.get(value, cluster.name)
            if source == cluster.name:
                continue
            transfer = moved.get((value, placed.device))
            more = []
            if transfer:
                took = f"{size(transfer.bytes)} · {seconds(transfer.end - transfer.start)}"
                text = _quote(f"{plan.words.value(value)}\n{took}")
                more.append(f"label={text}")
            if id(transfer) in hot_moves if transfer else {placed.cluster, source} <= hot:
                more.append(f'color="{INK}", penwidth=3')
            wants = f" [{', '.join(more)}]" if more else ""
            lines.append(f"  {_quote(source)} -> {_quote(cluster.name)}{wants};")
        for earlier in cluster.after:
            lines.append(f"  {_quote(earlier)} -> {_quote(cluster.name)} [style=dotted];")
    return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def text_chart(plan: Plan) -> str:
    """Return a swim-lane chart, time downwards, of at most 100 columns and about 48 lines; `┃` is the critical path.

    A line is one slice of time. A box shows the cluster that fills most of the slice, with `+2` for two hidden ones;
    transfers are on the line of their start.
    """
    plan = plan.printable
    machine = plan.costed.machine
    title = f"{plan.costed.graph.name} by {plan.policy}" + (f"  [{machine.label}]" if machine.label else "")
    gap = f"lower bound {seconds(plan.lower_bound)} (gap {percent(plan.gap)})" if plan.lower_bound else ""
    figures = (f"predicted {seconds(plan.makespan)}", gap, f"moved {size(plan.moved)}")
    lines = [title, " · ".join(filter(None, figures))]
    lanes = [lane for lane, steps in plan.orders.items() if any(isinstance(step, Placed) for step in steps)]
    if not lanes or not plan.makespan:
        return "\n".join([*lines, "nothing takes time in this plan"]) + "\n"
    hot = {id(plan.steps[index]) for index in plan.critical.path}
    notes_wide = 34 if plan.transfers and len(lanes) <= 4 else 0
    column = max(8, min(30, (_WIDE - _AXIS - notes_wide) // len(lanes) - 1))
    shares = busy_shares(plan.timeline())
    rows = max(8, min(48, 3 * len(plan.placed) + 4))
    tick = plan.makespan / rows
    grid = [_column(plan, lane, rows, tick, column, hot) for lane in lanes]
    moves = _moves(plan, rows, tick, hot, _WIDE - _AXIS - len(lanes) * (column + 1) - 1)
    heads = [f"{lane} {percent(shares.get(lane, 0.0))}".ljust(column) for lane in lanes]
    lines += ["", " " * _AXIS + " ".join(heads).rstrip()]
    for row in range(rows):
        when = seconds(row * tick) if row % 4 == 0 else ""
        cells = " ".join(cells[row] for cells in grid)
        lines.append(f"{when:>{_AXIS - 1}} {cells} {moves[row]}".rstrip())
    lines.append(f"{seconds(plan.makespan):>{_AXIS - 1}} " + " ".join("═" * column for _ in lanes))
    return "\n".join([*lines, _LEGEND]) + "\n"


def _column(plan: Plan, lane: str, rows: int, tick: float, wide: int, hot: set[int]) -> list[str]:
    here = [step for step in plan.orders[lane] if isinstance(step, Placed)]
    first = [min(rows - 1, int(step.start / tick)) for step in here]
    cells, before = [], -1
    for row in range(rows):
        low, high = row * tick, (row + 1) * tick
        shares = [min(step.end, high) - max(step.start, low) for step in here]
        index = max(range(len(here)), key=shares.__getitem__)
        if shares[index] <= 0.05 * tick:
            cells.append("╎".ljust(wide))
            before = -1
            continue
        edge = "┃" if id(here[index]) in hot else "│"
        if index == before:
            cells.append(edge + "░" * (wide - 1))
            continue
        before, count = index, first.count(row)
        more = f" +{count - 1}" if count > 1 else ""
        after = f"{more} {seconds(here[index].end - here[index].start)}"
        room = wide - 2 - len(after)
        name = plan.words.cluster(here[index].cluster)
        if len(name) > room:
            after = more
            room = wide - 2 - len(after)
        cells.append(f"{edge} {clip(name, room).ljust(room)}{after}")
    return cells


def _moves(plan: Plan, rows: int, tick: float, hot: set[int], room: int) -> list[str]:
    slots: list[list[Transfer]] = [[] for _ in range(rows)]
    for transfer in plan.transfers:
        slots[min(rows - 1, int(transfer.start / tick))].append(transfer)
    lines = []
    for slot in slots:
        if not slot:
            lines.append("")
            continue
        first = max(slot, key=lambda transfer: transfer.end - transfer.start)
        mark = "┃⇢" if any(id(transfer) in hot for transfer in slot) else "⇢"
        total = sum(transfer.bytes for transfer in slot)
        more = f" ×{len(slot)}" if len(slot) > 1 else ""
        tail = f" {first.src} → {first.dst}{more} {size(total)} · {seconds(first.end - first.start)}"
        if len(tail) + 8 > room:
            tail = f" {first.src}→{first.dst}{more} {size(total)}"
        name = clip(plan.words.value(first.value), max(0, room - len(mark) - 1 - len(tail)))
        lines.append(clip(f"{mark} {name}{tail}", room))
    return lines
