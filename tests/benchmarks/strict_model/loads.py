"""The load of each device under the paper's throughput model, as a problem of balancing."""

from __future__ import annotations

import math
from collections import deque

from autopar.planner.model.instance import Hop
from autopar.planner.model.toposort import late
from autopar.planner.throughput.loads import Loads, Net

from .graph import classes, outputs
from .partitioning import Partitioning


def strict_loads(graph: Partitioning) -> Loads:
    """A graph of the set as loads: devices are the cores, then the accelerators; groups are its classes, in the order
    of their first node.

    What an accelerator sends to the host and fetches from there keeps it busy, and cores pay for no transfer. A value
    stands for its seconds in place of bytes.
    """
    found, group = classes(graph)
    position = _positions(graph, group, len(found))
    cores, accelerators = graph.cpus, graph.accelerators
    seconds, held = [], []
    for members in found:
        own = [graph.nodes[v] for v in members]
        on_core = sum(node.cpu_s for node in own)
        able = all(node.accelerator_s is not None for node in own)
        on_accelerator = sum(node.accelerator_s or 0.0 for node in own) if able else math.inf
        nbytes = sum(node.nbytes for node in own)
        seconds.append([on_core] * cores + [on_accelerator] * accelerators)
        held.append([0] * cores + [nbytes] * accelerators)
    devices = cores + accelerators
    out = [Hop(d, -1, d, -1, 0.0, 1.0) for d in range(devices)]
    into = [Hop(-1, d, d, -1, 0.0, 1.0) for d in range(devices)]
    routes: list[list[tuple[Hop, ...] | None]] = [
        [(*((out[s],) if s >= cores else ()), *((into[d],) if d >= cores else ())) for d in range(devices)]
        for s in range(devices)
    ]
    values = []
    for v, (readers, cost) in enumerate(outputs(graph)):
        if any(group[w] != group[v] for w in readers):
            values.append(Net(cost, group[v], -1, tuple(group[w] for w in readers)))
    caps = [math.inf] * cores + [float(graph.cap)] * accelerators
    return Loads(seconds, [1] * devices, values, routes, devices, held, caps, position)


def _positions(graph: Partitioning, group: list[int], count: int) -> list[float]:
    """Where each class stands in an order of the forward pass; one of backward nodes alone stands with a class it
    exchanges values with."""
    forward: list[dict[int, None]] = [{} for _ in range(count)]
    near: list[dict[int, None]] = [{} for _ in range(count)]
    for edge in graph.edges:
        a, b = group[edge.src], group[edge.dst]
        near[a][b] = near[b][a] = None
        if a != b and not graph.nodes[edge.dst].backward:
            forward[b][a] = None
    settled = {group[v] for v, node in enumerate(graph.nodes) if not node.backward}
    ranks = {c: rank for rank, c in enumerate(late([list(own) for own in forward]))}
    found = [float(ranks[c]) if c in settled else math.inf for c in range(count)]
    border = deque(sorted(settled, key=ranks.__getitem__))
    while border:
        c = border.popleft()
        for other in near[c]:
            if other not in settled:
                settled.add(other)
                found[other] = found[c] + 0.5
                border.append(other)
    return found
