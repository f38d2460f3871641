"""The dependency graph as DOT text: a cluster for each device, clusters as nodes, values as edges."""

from __future__ import annotations

import json

from ..ir.plan import Plan
from ..text import seconds, size
from .drawing.palette import INK, QUIET, fill_of, shades


def dot_text(plan: Plan) -> str:
    """The plan for graphviz: what depends on what, where it runs, what moves; the critical path in bold."""
    costed, machine = plan.costed, plan.costed.machine
    look = shades((device.name, device.traits.host) for device in machine.devices)
    found = plan.critical
    hot = {step.cluster for step in (found.steps[index] for index in found.path) if hasattr(step, "cluster")}
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
        lines += [
            f"  {_quote(earlier)} -> {_quote(cluster.name)} [style=dotted];" for earlier in cluster.after
        ]
    return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
