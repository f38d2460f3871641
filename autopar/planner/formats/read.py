"""Task graphs from a file, parsed JSON, a networkx graph or a costed graph; and graphs of two public sets.

The Standard Task Graph set: Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor
scheduling algorithms", Journal of Scheduling 5(5), 2002. The dnn-partitioning set: Tarnawski, Phanishayee, Devanur,
Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Union

import networkx

from ...errors import DeviceError, PlanError
from ...ir.costed import CostedGraph
from ...ir.machine import Machine
from ...system import jsonfile
from . import graph_file
from .fields import JsonObject, known
from .graph_file import read_machine

Source: TypeAlias = Union[CostedGraph, Mapping[str, Any], networkx.DiGraph, str, "os.PathLike[str]"]
"""A task graph: a costed graph, parsed JSON, a networkx graph, or a path."""
WAY = "write a graph as a JSON object of four lists"
"""Advice in error messages."""
BYTES_PER_S = 1e-3
"""Bytes per second of a link of the dnn-partitioning set, which gives times of transfers: these bytes must be
negligible against the sizes of nodes in an accelerator's memory."""


def read(source: Source, machine: Machine | int | None = None) -> CostedGraph:
    """Read a task graph from any source, on `machine` if given instead of its own.

    Raises PlanError or DeviceError with one sentence.
    """
    if isinstance(source, CostedGraph):
        on = _machine(machine)
        return _on(source, on) if on else source
    name, data = plain(source, machine)
    return graph_file.costed(data, name, machine if isinstance(machine, Machine) else None)


def plain(source: Source, machine: Machine | int | None = None) -> tuple[str, Any]:
    """Return the name and the parsed JSON, in autopar's format, of a source that is not costed yet. With
    `machine`, that of a networkx graph lacks the lists of devices and links.

    A path that ends in `.stg` is a graph of the Standard Task Graph set, for which `machine` is the number of
    processors, as it may be for a networkx graph. JSON with `nodes` and `edges` is of the dnn-partitioning set.
    """
    name: str = "graph"
    data: Any = source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name = path.stem
        if path.suffix.lower() == ".stg":
            return name, stg(jsonfile.text(path, WAY), _processors(machine, path.name))
        data = jsonfile.load(path, WAY)
    if isinstance(data, networkx.Graph):
        name = str(data.name or name)
        if isinstance(machine, int):
            return name, _networkx(data, None, _processors(machine, f"the networkx graph {name!r}"))
        return name, _networkx(data, _machine(machine))
    _machine(machine)
    if is_dnn_partitioning(data):
        data = dnn_partitioning(data)
    return name, data


def _on(costed: CostedGraph, machine: Machine) -> CostedGraph:
    had, given = ([device.name for device in m.devices] for m in (costed.machine, machine))
    if had != given:
        raise DeviceError(
            f"the graph was costed for {', '.join(had)} and the machine has {', '.join(given)}; cost it again, or give "
            "a machine with these devices in this order"
        )
    return replace(costed, machine=machine.check())


def _machine(machine: Machine | int | None) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if isinstance(machine, int):
        raise DeviceError(
            f"a number of processors ({machine}) goes with .stg files and networkx graphs alone; leave it out, as "
            "other graphs bring their devices"
        )
    raise DeviceError(
        f"machine={machine!r} is not a Machine; give one, or leave it out where the graph brings it"
    )


def _processors(machine: Machine | int | None, source: str) -> int:
    if isinstance(machine, int) and not isinstance(machine, bool) and machine > 0:
        return machine
    given = "" if machine is None else f", and {machine!r} is not a number of them"
    raise DeviceError(
        f"{source} does not say on how many processors it is to be planned{given}; give a number of them, such as 4 "
        "(on the command line --processors 4)"
    )


def _networkx(graph: networkx.DiGraph, machine: Machine | None, processors: int = 0) -> dict[str, Any]:
    """Convert a DiGraph whose nodes are tasks to a graph file; ids are the nodes as text.

    With a number of `processors`, these are equal lanes of one device, between which nothing is transferred.

    A node has the attribute `seconds`, a number for every device or {device: seconds} (or {device: {lanes: seconds}}),
    and optionally `state_bytes`, `workspace_bytes`, `colocate` and `pin`. An edge may have `bytes` (default 0) and
    `value`: edges of one node with the same `value` are one value, sent once to each device; without it each edge is
    its own value. Without a machine, the lists of devices and links are the attributes `devices` and `links` of the
    graph. Raises PlanError for an invalid graph.
    """
    if not graph.is_directed():
        raise PlanError(
            "a task graph has directed edges and this networkx graph has not; give a networkx.DiGraph"
        )
    if processors:
        wrong = next((node for node, cost in graph.nodes(data="seconds") if isinstance(cost, Mapping)), None)
        if wrong is not None:
            raise PlanError(
                f"node {wrong!r} has seconds for each device, and {processors} processors are all alike; give it one "
                "number, or a Machine in place of the number of processors"
            )
        graph = graph.copy()
        graph.graph |= {"devices": [{"name": "cpu", "lanes": processors, "memory_bytes": None}], "links": []}
    if machine is None and "devices" not in graph.graph:
        raise PlanError(
            "the networkx graph has no devices; give a Machine, a number of equal processors such as 2, or put the "
            "lists 'devices' and 'links' into graph.graph"
        )
    on = {} if machine else {key: graph.graph.get(key, []) for key in ("devices", "links")}
    names = [device.name for device in (machine or read_machine(JsonObject(on, "the graph"))).devices]
    tasks = []
    for node, given in graph.nodes(data=True):
        if "seconds" not in given:
            raise PlanError(
                f"node {node!r} has no 'seconds'; add_node({node!r}, seconds={{device: seconds}})"
            )
        cost = given["seconds"]
        tasks.append(
            {
                "id": str(node),
                "seconds": cost if isinstance(cost, Mapping) else dict.fromkeys(names, cost),
                **{k: given[k] for k in ("state_bytes", "workspace_bytes", "colocate", "pin") if k in given},
            }
        )
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for src, dst, given in graph.edges(data=True):
        own = given.get("value") is None
        label = f"{src} → {dst}" if own else f"{src}: {given['value']}"
        while own and (str(src), label) in values:
            label += "'"
        nbytes = given.get("bytes", 0)
        value = values.setdefault(
            (str(src), label), {"id": label, "producer": str(src), "consumers": [], "bytes": nbytes}
        )
        if value["bytes"] != nbytes:
            raise PlanError(
                f"the edge {src!r} → {dst!r} moves {nbytes!r} bytes of the value {given.get('value')!r} and another "
                f"edge {value['bytes']!r}; one value has one size"
            )
        value["consumers"].append(str(dst))
    return {"tasks": tasks, "values": [*values.values()], **on}


def is_dnn_partitioning(data: Any) -> bool:
    """Return True if parsed JSON is of this set."""
    return isinstance(data, Mapping) and "nodes" in data and "edges" in data and "tasks" not in data


def dnn_partitioning(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a graph of the set, on a host and its accelerators, to a graph file. Raises PlanError for invalid input.

    `nodes` have `id`, `cpuLatency` and `fpgaLatency` (ms), `size` (bytes on an accelerator), `supportedOnFpga`,
    `isBackwardNode` and `colorClass` (nodes of one class share a device); `edges` have `sourceId`, `destId` and `cost`
    (ms to transfer the output of the source between an accelerator and the host, in either direction). The host is one
    device with `maxCPUs` lanes. Each accelerator has a link from the host and one to it, and reaches the
    others through the host. This relaxes the set's own model, in which an accelerator runs its part as one
    call without overlapping transfers.
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
    # Nodes may fill an accelerator to the last byte, and values take bytes here too.
    room = graph.nbytes("maxSizePerFPGA") + BYTES_PER_S * sum(seconds for _, seconds in outputs)
    devices += [{"name": name, "lanes": 1, "memory_bytes": room} for name in accelerators]
    return {"tasks": [*tasks.values()], "values": values, "devices": devices, "links": links}


def stg(text: str, processors: int) -> dict[str, Any]:
    """Convert the text of an `.stg` file, on `processors` identical lanes of one device, to a graph file.

    The first line has the number of tasks. Each task has a line: its number, processing time, number of
    predecessors, and these. `#` starts the remarks at the end. Times have no unit in the set; here they are
    seconds. Dummy start and end tasks are kept, with zero time. Raises PlanError with the wrong line.
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
