"""Graphs of the dnn-partitioning set, as the numbers of its own model and as graph files.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020. `nodes` have `id`, `cpuLatency` and `fpgaLatency` (ms), `size` (bytes on an accelerator),
`supportedOnFpga`, `isBackwardNode` and `colorClass` (nodes of one class share a device); `edges` have `sourceId`,
`destId` and `cost` (ms to move the output of the source between an accelerator and the host, in either direction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import PlanError
from .fields import Entry, known

BYTES_PER_S = 1e-3
"""Bytes per second of a link of the graph file: costs are given in time alone, and accelerators hold the sizes of their
nodes alone, beside which these bytes are nothing."""


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator: seconds on a CPU core and on an accelerator (None: not there), bytes on an accelerator, whether
    it belongs to the backward pass, and the class of nodes that it shares a device with."""

    name: str
    cpu_s: float
    accelerator_s: float | None
    nbytes: int
    backward: bool
    color: str | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """The output of node `src`, by position, is read by `dst`; `seconds` between the host and an accelerator."""

    src: int
    dst: int
    seconds: float


@dataclass(frozen=True)
class Partitioning:
    """A graph of the set: up to `accelerators` of `cap` bytes each may be used, and `cpus` cores."""

    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    accelerators: int
    cpus: int
    cap: int


def is_partitioning(data: Any) -> bool:
    """True if parsed JSON is of this set."""
    return isinstance(data, Mapping) and "nodes" in data and "edges" in data and "tasks" not in data


def partitioning(data: Mapping[str, Any]) -> Partitioning:
    """The numbers of a graph of the set; PlanError says what is not as it should be."""
    graph = Entry(data, "the graph")
    nodes: dict[str, _Node] = {}
    for entry in graph.entries("nodes"):
        name = str(entry.need("id"))
        if name in nodes:
            raise PlanError(f"two nodes have the id {name}; give each an id of its own")
        entry.called = f"node {name}"
        cpu, accelerator = (entry.seconds(key) / 1e3 for key in ("cpuLatency", "fpgaLatency"))
        color = entry.data.get("colorClass")
        nodes[name] = _Node(
            name,
            cpu,
            accelerator if entry.data.get("supportedOnFpga", True) else None,
            entry.nbytes("size", 0),
            bool(entry.data.get("isBackwardNode", False)),
            None if color is None else str(color),
        )
    position = {name: index for index, name in enumerate(nodes)}
    edges = []
    for entry in graph.entries("edges"):
        src, dst = (
            known(str(entry.need(end)), position, "node", f"{end!r} of {entry.called}")
            for end in ("sourceId", "destId")
        )
        edges.append(_Edge(src, dst, entry.seconds("cost") / 1e3))
    accelerators, cpus = (graph.count(key, least=0) for key in ("maxFPGAs", "maxCPUs"))
    return Partitioning(
        tuple(nodes.values()), tuple(edges), accelerators, cpus, graph.nbytes("maxSizePerFPGA")
    )


def described(graph: Partitioning) -> dict[str, Any]:
    """The graph on a host and its accelerators as a graph file.

    The host is one device of `cpus` lanes. Each accelerator has a wire from the host and one to it, and is reached
    from others through the host. This machine is freer than the set's own model, in which an accelerator runs its
    part as one call and does not compute while it moves data.
    """
    accelerators = [f"accelerator:{index}" for index in range(graph.accelerators)]
    tasks = []
    for node in graph.nodes:
        seconds = {"cpu": node.cpu_s} if graph.cpus else {}
        if node.accelerator_s is not None:
            seconds |= dict.fromkeys(accelerators, node.accelerator_s)
        tasks.append(
            {"id": node.name, "seconds": seconds, "state_bytes": node.nbytes, "colocate": node.color}
        )
    outputs: dict[tuple[int, float], list[int]] = {}
    for edge in graph.edges:
        outputs.setdefault((edge.src, edge.seconds), []).append(edge.dst)
    values = [
        {
            "id": f"output {index} of {graph.nodes[src].name}",
            "producer": graph.nodes[src].name,
            "consumers": [graph.nodes[dst].name for dst in readers],
            "bytes": seconds * BYTES_PER_S,
        }
        for index, ((src, seconds), readers) in enumerate(outputs.items())
    ]
    links = [
        {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": BYTES_PER_S}
        for accelerator in accelerators
        for src, dst in (("cpu", accelerator), (accelerator, "cpu"))
    ]
    devices = [{"name": "cpu", "lanes": max(1, graph.cpus), "memory_bytes": None}]
    # Nodes may fill an accelerator to the last byte.
    room = graph.cap + BYTES_PER_S * sum(seconds for _, seconds in outputs)
    devices += [{"name": name, "lanes": 1, "memory_bytes": room} for name in accelerators]
    return {"tasks": tasks, "values": values, "devices": devices, "links": links}
