"""Graphs of two public sets, as graph files.

The Standard Task Graph set: Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor
scheduling algorithms", Journal of Scheduling 5(5), 2002. The dnn-partitioning set: Tarnawski, Phanishayee, Devanur,
Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import PlanError
from .fields import JsonObject, known

BYTES_PER_S = 1e-3
"""Bytes per second of a link in the graph file: the set gives transfer costs in time, and these bytes must be
negligible against the sizes of nodes in an accelerator's memory."""


def is_dnn_partitioning(data: Any) -> bool:
    """Return True if parsed JSON is of this set."""
    return isinstance(data, Mapping) and "nodes" in data and "edges" in data and "tasks" not in data


def dnn_partitioning(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a graph of the set, on a host and its accelerators, to a graph file. Raises PlanError for invalid input.

    `nodes` have `id`, `cpuLatency` and `fpgaLatency` (ms), `size` (bytes on an accelerator), `supportedOnFpga`,
    `isBackwardNode` and `colorClass` (nodes of one class share a device); `edges` have `sourceId`, `destId` and `cost`
    (ms to transfer the output of the source between an accelerator and the host, in either direction). The host is one
    device with `maxCPUs` lanes. Each accelerator has a wire from and one to the host, through which it reaches the
    others. This relaxes the set's own model, in which an accelerator runs its part as one call without overlapping
    transfers.
    """
    graph = JsonObject(data, "the graph")
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


def stg(text: str, processors: int) -> dict[str, Any]:
    """Convert the text of an `.stg` file, on `processors` identical lanes of one device, to a graph file.

    The first line has the number of tasks; then a line for each: its number, processing time, number of predecessors,
    and these. `#` starts the remarks at the end. Times have no unit in the set; here they are seconds. Dummy start and
    end tasks are kept, with zero time. Raises PlanError with the wrong line.
    """
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    numbered = [(number, words) for number, words in enumerate(lines, 1) if words]
    if not numbered:
        raise PlanError("the .stg file is empty; its first line has the number of tasks")
    (first, head), *rest = numbered
    declared = _whole(head[:1], first)[0]
    tasks: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for number, words in rest:
        name, *_ = _whole(words[:1], number)
        waits = _whole(words[2:], number)
        if len(words) < 3 or waits[0] != len(waits) - 1:
            raise PlanError(
                f"line {number} of the .stg file has {max(0, len(words) - 3)} predecessors but does not say so; a line "
                "has the task, its time, how many tasks it waits for, and which"
            )
        if name in tasks:
            raise PlanError(f"line {number} of the .stg file has task {name} a second time")
        tasks[name], seconds[name] = waits[1:], _time(words[1], number)
    if len(tasks) not in (declared, declared + 2):
        raise PlanError(
            f"the .stg file says that it has {declared} tasks and has {len(tasks)}; two more, for the beginning and "
            "the end, are all there may be"
        )
    after: dict[int, list[str]] = {name: [] for name in tasks}
    for name, waits in tasks.items():
        for earlier in waits:
            if earlier not in tasks:
                raise PlanError(f"task {name} of the .stg file waits for {earlier}, which it does not have")
            after[earlier].append(str(name))
    return {
        "tasks": [{"id": str(name), "seconds": {"cpu": seconds[name]}} for name in tasks],
        "values": [
            {"id": f"{name} done", "producer": str(name), "consumers": later, "bytes": 0}
            for name, later in after.items()
            if later
        ],
        "devices": [{"name": "cpu", "lanes": processors, "memory_bytes": None}],
        "links": [],
    }


def _whole(words: Sequence[str], line: int) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError as error:
        raise PlanError(f"line {line} of the .stg file: {error}; it must be a whole number") from None


def _time(word: str, line: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise PlanError(f"line {line} of the .stg file has the time {word!r}; it must be a number") from None
