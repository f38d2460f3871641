"""Task graphs from a file, parsed JSON, a networkx graph or a costed graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Union

import networkx

from ...errors import DeviceError, PlanError
from ...ir.costed import CostedGraph
from ...ir.machine import Machine
from ...ir.serialize import read_json
from . import graph_file
from .fields import JsonObject
from .graph_file import read_machine

Source: TypeAlias = Union[CostedGraph, Mapping[str, Any], networkx.DiGraph, str, "os.PathLike[str]"]
"""A task graph: a costed graph, parsed JSON, a networkx graph, or a path."""
WAY = "write a graph as a JSON object of four lists"
"""Advice in error messages."""


def read(source: Source, machine: Machine | int | None = None) -> CostedGraph:
    """Read a task graph from any source, on `machine` if it is not None. For a networkx graph, `machine` may be
    a number of equal processors.

    Raises PlanError or DeviceError with one sentence.
    """
    if isinstance(source, CostedGraph):
        on = _machine(machine)
        return _on(source, on) if on else source
    name: str = "graph"
    data: Any = source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name = path.stem
        data = read_json(path, WAY)
    if isinstance(data, networkx.Graph):
        name = str(data.name or name)
        if isinstance(machine, int):
            data = _networkx(data, None, _processors(machine))
            return graph_file.costed(data, name)
        data = _networkx(data, _machine(machine))
    return graph_file.costed(data, name, _machine(machine))


def _on(costed: CostedGraph, machine: Machine) -> CostedGraph:
    had, wanted = ([device.name for device in m.devices] for m in (costed.machine, machine))
    if had != wanted:
        raise DeviceError(
            f"the graph was costed for {', '.join(had)} and the machine has {', '.join(wanted)}; cost it again, or "
            "give a machine with these devices in this order"
        )
    return replace(costed, machine=machine.check())


def _machine(machine: Machine | int | None) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if isinstance(machine, int):
        raise DeviceError(
            f"a number of processors ({machine}) goes with networkx graphs alone; leave it out, as other graphs bring "
            "their devices"
        )
    raise DeviceError(
        f"machine={machine!r} is not a Machine; give one, or leave it out where the graph brings it"
    )


def _processors(number: int) -> int:
    if isinstance(number, bool) or number < 1:
        raise DeviceError(f"{number!r} is not a number of processors; give one such as 4, or a Machine")
    return number


def _networkx(graph: networkx.DiGraph, machine: Machine | None, processors: int = 0) -> dict[str, Any]:
    """Convert a DiGraph whose nodes are tasks to a graph file; ids are the nodes as text.

    With a number of `processors`, these are equal lanes of one device, between which nothing is transferred.

    A node has the attribute `seconds`, a number for every device or {device: seconds},
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
    for node, fields in graph.nodes(data=True):
        if "seconds" not in fields:
            raise PlanError(
                f"node {node!r} has no 'seconds'; add_node({node!r}, seconds={{device: seconds}})"
            )
        cost = fields["seconds"]
        tasks.append(
            {
                "id": str(node),
                "seconds": cost if isinstance(cost, Mapping) else dict.fromkeys(names, cost),
                **{
                    k: fields[k] for k in ("state_bytes", "workspace_bytes", "colocate", "pin") if k in fields
                },
            }
        )
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for src, dst, fields in graph.edges(data=True):
        unnamed = fields.get("value") is None
        label = f"{src} → {dst}" if unnamed else f"{src}: {fields['value']}"
        while unnamed and (str(src), label) in values:
            label += "'"
        nbytes = fields.get("bytes", 0)
        value = values.setdefault(
            (str(src), label), {"id": label, "producer": str(src), "consumers": [], "bytes": nbytes}
        )
        if value["bytes"] != nbytes:
            raise PlanError(
                f"the edge {src!r} → {dst!r} moves {nbytes!r} bytes of the value {fields.get('value')!r} and another "
                f"edge {value['bytes']!r}; one value has one size"
            )
        value["consumers"].append(str(dst))
    return {"tasks": tasks, "values": [*values.values()], **on}
