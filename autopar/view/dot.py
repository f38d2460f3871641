"""A plan as a dependency graph in DOT, for graphviz."""

from __future__ import annotations

import json

from ..ir.plan import Plan
from ..ir.timeline import Placed
from ..system.text import seconds, size
from .drawing.design import INK, QUIET, fill_of, shades


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
