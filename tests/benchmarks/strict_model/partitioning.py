"""A graph of the dnn-partitioning set as the numbers of its own model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    data: Mapping[str, Any]
    """The graph as parsed JSON."""


def partitioning(data: Mapping[str, Any]) -> Partitioning:
    """The numbers of a graph that `described` takes."""
    position = {str(node["id"]): index for index, node in enumerate(data["nodes"])}
    nodes = tuple(
        _Node(
            name,
            node["cpuLatency"] / 1e3,
            node["fpgaLatency"] / 1e3 if node.get("supportedOnFpga", True) else None,
            node.get("size", 0),
            bool(node.get("isBackwardNode", False)),
            None if node.get("colorClass") is None else str(node["colorClass"]),
        )
        for name, node in zip(position, data["nodes"])
    )
    edges = tuple(
        _Edge(position[str(edge["sourceId"])], position[str(edge["destId"])], edge["cost"] / 1e3)
        for edge in data["edges"]
    )
    return Partitioning(nodes, edges, data["maxFPGAs"], data["maxCPUs"], data["maxSizePerFPGA"], data)
