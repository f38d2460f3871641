"""Graphs of the dnn-partitioning set as graph files.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020. `nodes` have `id`, `cpuLatency` and `fpgaLatency` (ms), `size` (bytes on an accelerator),
`supportedOnFpga`, `isBackwardNode` and `colorClass` (nodes of one class share a device); `edges` have `sourceId`,
`destId` and `cost` (ms to move the output of the source between an accelerator and the host, in either direction).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import PlanError
from .fields import Entry, known

BYTES_PER_S = 1e-3
"""Bytes per second of a link of the graph file: costs are given in time alone, and accelerators hold the sizes of their
nodes alone, beside which these bytes are nothing."""


def is_partitioning(data: Any) -> bool:
    """True if parsed JSON is of this set."""
    return isinstance(data, Mapping) and "nodes" in data and "edges" in data and "tasks" not in data


def described(data: Mapping[str, Any]) -> dict[str, Any]:
    """The graph on a host and its accelerators as a graph file; PlanError says what is not as it should be.

    The host is one device of `maxCPUs` lanes. Each accelerator has a wire from the host and one to it, and is reached
    from others through the host. This machine is freer than the set's own model, in which an accelerator runs its
    part as one call and does not compute while it moves data.
    """
    graph = Entry(data, "the graph")
    count, cpus = (graph.count(key, least=0) for key in ("maxFPGAs", "maxCPUs"))
    accelerators = [f"accelerator:{index}" for index in range(count)]
    tasks: dict[str, dict[str, Any]] = {}
    for entry in graph.entries("nodes"):
        name = str(entry.need("id"))
        if name in tasks:
            raise PlanError(f"two nodes have the id {name}; give each an id of its own")
        entry.called = f"node {name}"
        cpu, accelerator = (entry.seconds(key) / 1e3 for key in ("cpuLatency", "fpgaLatency"))
        seconds = {"cpu": cpu} if cpus else {}
        if entry.data.get("supportedOnFpga", True):
            seconds |= dict.fromkeys(accelerators, accelerator)
        color = entry.data.get("colorClass")
        group = None if color is None else str(color)
        held = entry.nbytes("size", 0)
        tasks[name] = {"id": name, "seconds": seconds, "state_bytes": held, "colocate": group}
    names = [*tasks]
    position = {name: index for index, name in enumerate(names)}
    outputs: dict[tuple[int, float], list[str]] = {}
    for entry in graph.entries("edges"):
        src, dst = (
            known(str(entry.need(end)), position, "node", f"{end!r} of {entry.called}")
            for end in ("sourceId", "destId")
        )
        outputs.setdefault((src, entry.seconds("cost") / 1e3), []).append(names[dst])
    values = [
        {
            "id": f"output {index} of {names[src]}",
            "producer": names[src],
            "consumers": readers,
            "bytes": seconds * BYTES_PER_S,
        }
        for index, ((src, seconds), readers) in enumerate(outputs.items())
    ]
    links = [
        {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": BYTES_PER_S}
        for accelerator in accelerators
        for src, dst in (("cpu", accelerator), (accelerator, "cpu"))
    ]
    devices = [{"name": "cpu", "lanes": max(1, cpus), "memory_bytes": None}]
    # Nodes may fill an accelerator to the last byte.
    room = graph.nbytes("maxSizePerFPGA") + BYTES_PER_S * sum(seconds for _, seconds in outputs)
    devices += [{"name": name, "lanes": 1, "memory_bytes": room} for name in accelerators]
    return {"tasks": [*tasks.values()], "values": values, "devices": devices, "links": links}
