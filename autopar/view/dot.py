"""The dependency graph as DOT text: a cluster for each device, runs as nodes, values as edges."""

from __future__ import annotations

import json

from ..ir.plan import Plan
from ..text.tables import seconds, size
from .drawing.palette import INK, QUIET, fill_of, shades


def dot_text(plan: Plan) -> str:
    """The plan for graphviz: what depends on what, where it runs, what moves; the critical path in bold."""
    costed, machine = plan.costed, plan.costed.machine
    look = shades((device.name, device.kind == "cpu") for device in machine.devices)
    found = plan.critical
    hot = {step.run for step in (found.steps[index] for index in found.path) if hasattr(step, "run")}
    moved = {(t.value, t.dst): t for t in plan.transfers}
    hot_moves = {id(found.steps[index]) for index in found.path}
    title = (
        costed.graph.name + (f" · {machine.label}" if machine.label else "") + f" · {seconds(plan.makespan)}"
    )
    lines = [
        f"digraph {_quote(costed.graph.name)} {{",
        f'  graph [label={_quote(title)}, labelloc=t, rankdir=TB, fontname="Inter"];',
        f'  node [shape=box, style="filled,rounded", fontname="Inter", fontsize=11, fontcolor="{INK}"];',
        f'  edge [fontname="Inter", fontsize=9, color="{QUIET}", fontcolor="{QUIET}"];',
    ]
    for number, device in enumerate(machine.devices):
        here = [placed for placed in plan.placed if placed.device == device.name]
        if not here:
            continue
        shade = look[device.name]
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f'    label={_quote(device.name)}; color="{shade.hue}"; fontcolor="{shade.text}";')
        for placed in here:
            run = costed.run[placed.run]
            module = costed.graph.task[run.tasks[0]].module
            label = "\n".join(
                filter(None, (plan.words.run(placed.run), module, seconds(placed.end - placed.start)))
            )
            width = ", penwidth=3" if placed.run in hot else ""
            color = INK if placed.run in hot else shade.hue
            lines.append(
                f"    {_quote(placed.run)} [label={_quote(label)}, "
                f'fillcolor="{fill_of(shade, plan.words.phase(placed.run))}", color="{color}"{width}];'
            )
        lines.append("  }")
    for placed in plan.placed:
        run = costed.run[placed.run]
        for value in run.reads:
            if value not in costed.producer or costed.producer[value] == run.name:
                continue
            transfer = moved.get((value, placed.device))
            wants = []
            if transfer:
                text = f"{plan.words.value(value)}\n{size(transfer.bytes)} · {seconds(transfer.end - transfer.start)}"
                wants.append(f"label={_quote(text)}")
            bold = id(transfer) in hot_moves if transfer else {placed.run, costed.producer[value]} <= hot
            if bold:
                wants.append(f'color="{INK}", penwidth=3')
            more = f" [{', '.join(wants)}]" if wants else ""
            lines.append(f"  {_quote(costed.producer[value])} -> {_quote(run.name)}{more};")
        for earlier in run.after:
            lines.append(f"  {_quote(earlier)} -> {_quote(run.name)} [style=dotted];")
    return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
