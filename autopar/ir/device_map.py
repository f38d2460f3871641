"""A plan as a device map of Hugging Face accelerate: the device of each module path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import networkx

from .costed import CostedGraph

Place: TypeAlias = tuple[float, int, int]
"""Sort key of a module's devices, the largest wins: seconds of tasks, number of tasks, and minus the device's
number."""


def device_map(costed: CostedGraph, devices: Mapping[str, str]) -> dict[str, str]:
    """Return the device of every parameter and buffer, by the shortest module paths with a single device.

    `devices` are those of the clusters. A module's own tensors stay together, and so do modules that share tensors:
    tied weights are on one device.
    """
    graph = costed.graph
    paths = dict(graph.paths) or {path: path for path in (graph.value[name].path for name in graph.state)}
    # Modules that share tensors, by a representative.
    tied = networkx.Graph((_owner(path), _owner(same)) for path, same in paths.items())
    unit = {module: min(group) for group in networkx.connected_components(tied) for module in group}
    found = _devices(costed, devices, unit)
    where = {path: found.get(unit[_owner(path)], "") for path in paths}
    for path, device in where.items():
        where[path] = device or _neighbour(path, where) or costed.machine.host
    return dict(_folded("", where))


def _owner(path: str) -> str:
    """Return the module that owns a tensor; the tensor itself if that is the whole model."""
    return path.rpartition(".")[0] or path


def _devices(costed: CostedGraph, devices: Mapping[str, str], unit: dict[str, str]) -> dict[str, str]:
    """Return the device on which the tasks of each unit spend the most time."""
    graph = costed.graph
    spent: dict[str, dict[str, Place]] = {}
    for task in graph.tasks:
        device = devices.get(costed.cluster_of.get(task.name, ""))
        if device is None or task.phase != "forward":
            continue
        read = {_owner(graph.value[name].path) for name in task.inputs if graph.value[name].kind == "state"}
        at = costed.index[device]
        for module in {unit[owner] for owner in (task.module, *read) if owner in unit}:
            found = spent.setdefault(module, {})
            time, count, _ = found.get(device, (0.0, 0, 0))
            found[device] = time + (costed.cost[task.name].seconds[at] or 0.0), count + 1, -at
    return {module: max(found, key=lambda name: found[name]) for module, found in spent.items()}


def _neighbour(path: str, where: dict[str, str]) -> str:
    """Return the device of most of the tensors next to a path."""
    while path:
        path = path.rpartition(".")[0]
        near = Counter(device for other, device in where.items() if device and _below(other, path))
        if near:
            return near.most_common(1)[0][0]
    return ""


def _below(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _folded(module: str, where: dict[str, str]) -> list[tuple[str, str]]:
    if len({*where.values()}) == 1:
        return [(module, next(iter(where.values())))]
    children: dict[str, dict[str, str]] = {}
    start = len(module) + 1 if module else 0
    for path, device in where.items():
        child = path[:start] + path[start:].partition(".")[0]
        children.setdefault(child, {})[path] = device
    return [entry for child, below in children.items() for entry in _folded(child, below)]
