"""networkx graphs as graph files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx

from ...errors import PlanError
from ...ir.machine import Machine
from .fields import Entry
from .graph_file import machine_lists, read_machine


def described(graph: networkx.DiGraph, machine: Machine | None) -> dict[str, Any]:
    """A DiGraph whose nodes are tasks as a graph file; ids are the nodes as text.

    A node has the attribute `seconds`, a number for every device or {device: seconds} (or {device: {lanes:
    seconds}}), and may have `state_bytes`, `workspace_bytes`, `colocate` and `pin`. An edge may have `bytes`
    (0 when it has none) and `value`: edges of one node with the same `value` are one value, sent once to a device
    and shared there; without it each edge is a value of its own. The machine is the one given, else the lists
    `devices` and `links` among the attributes of the graph. Raises PlanError for what is no such graph.
    """
    if not graph.is_directed():
        raise PlanError(
            "a task graph has directed edges and this networkx graph has not; give a networkx.DiGraph"
        )
    if machine is None and "devices" not in graph.graph:
        raise PlanError(
            "a networkx graph says nothing of devices; give a machine, or put the lists 'devices' and 'links' into "
            "graph.graph"
        )
    on = (
        machine_lists(machine) if machine else {key: graph.graph.get(key, []) for key in ("devices", "links")}
    )
    names = [device.name for device in read_machine(Entry(on, "the graph")).devices]
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
