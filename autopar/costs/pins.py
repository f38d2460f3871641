"""The user's placement constraints: pins of tasks and of sums, and homes of weights, by paths and globs of paths."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeAlias

from ..errors import PlanError
from ..ir.graph import SUM, Graph, Task
from ..ir.machine import Machine

_SHOWN = 5
"""Limit on the pins named in a remark."""

Home: TypeAlias = str | Mapping[str, str]
"""`"auto"`, one device for all weights, or the device of each module path, parameter path or glob."""

_STATE = "optimizer.state."


def resolve(
    graph: Graph, pins: Mapping[str, str], machine: Machine, weights: Collection[str] = ()
) -> dict[str, str]:
    """Return the device of each pinned task: `{"tower_a": "cuda:1", "*.embedding": "cpu"}`.

    A pin is a path or a glob. The path of a module pins everything below it ("" is the whole model). The path
    of a parameter or buffer pins the tasks that read it; for `weights` in training, it pins the sums of their
    gradients (`resolve_sums`) and their updates. If several pins reach a task, the longest path wins; a glob
    counts as the shortest path that it matches, so `*` is weaker than any name. Then a module's path wins
    over that of an input, and a plain path over a glob. Raises PlanError for a path without a match and for a
    parameter shared by modules pinned to different devices, DeviceError for a device that the machine lacks.
    """
    require_devices(pins, machine)
    modules = _modules(graph)
    paths = [graph.value[name].path for name in graph.state if graph.value[name].path]
    strength: dict[str, tuple[int, bool, bool, int, str]] = {}
    device_of: dict[str, str] = {}
    for pattern, device in sorted(pins.items()):
        reached = _reached(graph, modules, pattern, weights)
        if pattern and not reached and not any(_means(pattern, path) for path in (*modules, *paths)):
            raise _unknown(pattern, [*modules, *paths])
        for task, (depth, inside) in reached.items():
            key = (depth, inside, not _glob(pattern), len(pattern), pattern)
            if task not in strength or key > strength[task]:
                strength[task], device_of[task] = key, device
    _check_tied(graph, device_of)
    return {task.name: device_of[task.name] for task in graph.tasks if task.name in device_of}


def require_devices(pins: Mapping[str, str], machine: Machine) -> None:
    """Raise DeviceError for a pin to a device that the machine lacks."""
    for path, device in pins.items():
        machine.require(device, f"the pin {path!r}: ")


def require_paths(pins: Mapping[str, str], known: Collection[str], what: str = "pin") -> None:
    """Raise PlanError for a pin that matches none of these paths of modules, parameters and buffers."""
    for pattern in pins:
        if pattern and not any(_means(pattern, path) for path in known):
            raise _unknown(pattern, list(known), what)


def naming(graph: Graph, pins: Mapping[str, str]) -> dict[str, str]:
    """Return the pins that match something in this graph, which may be one of several of a model."""
    paths = {*_modules(graph), *(graph.value[name].path for name in graph.state)} - {""}
    return {
        pattern: device
        for pattern, device in pins.items()
        if not pattern or pattern in paths or any(_means(pattern, path) for path in paths)
    }


def unused(graphs: Collection[Graph], pins: Mapping[str, str]) -> list[str]:
    """Return a remark on pins that match nothing in any of these graphs: parts of the model that did not run."""
    named = {pattern for graph in graphs for pattern in naming(graph, pins)}
    idle = [pattern for pattern in pins if pattern not in named]
    if not idle:
        return []
    more = f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else ""
    return [f"pins of what has no task here, without effect: {', '.join(idle[:_SHOWN])}{more}"]


def resolve_sums(graph: Graph, pins: Mapping[str, str], gradients: Mapping[str, str]) -> dict[str, str]:
    """Return the device of the sum of each gradient whose weight is pinned: {value: device}.

    `gradients`: the gradient of each weight. The longest pin wins, as in `resolve`.
    """
    device_of: dict[str, str] = {}
    for pattern, device in sorted(pins.items(), key=lambda pin: (not _glob(pin[0]), len(pin[0]), pin[0])):
        for weight, gradient in gradients.items():
            if _means(pattern, graph.value[weight].path):
                device_of[gradient] = device
    return device_of


def pinned_sums(graph: Graph, sums: Mapping[str, str]) -> dict[str, str]:
    """Return the tasks of a split graph that sum the gradients in `sums`, each with its device."""
    device_of: dict[str, str] = {}
    for value, device in sums.items():
        name = graph.producer.get(value, "")
        while name and graph.task[name].free:
            name = graph.producer.get(graph.task[name].inputs[0], "") if graph.task[name].inputs else ""
        if name and graph.task[name].target == SUM:
            device_of.setdefault(name, device)
    return device_of


def require_home(home: Home, machine: Machine) -> None:
    """Raise PlanError for an invalid home, DeviceError for a device that the machine lacks."""
    if home == "auto":
        return
    if isinstance(home, str):
        machine.require(home)
        return
    if not isinstance(home, Mapping) or not all(
        isinstance(end, str) for pair in home.items() for end in pair
    ):
        raise PlanError(
            f'home={home!r} is not known; give "auto", a device, or {{"path.of.a.module": device}}, as with pins='
        )
    for device in home.values():
        machine.require(device)


def lives(path: str, home: Home) -> str:
    """Return the home of the weight with this path, by the longest match; "" if it is left open."""
    if isinstance(home, str):
        return "" if home == "auto" else home
    parts = path.removeprefix(_STATE).split(".")
    matches = [
        ((count, "*" not in pattern), device)
        for pattern, device in sorted(home.items())
        for count in range(1, len(parts) + 1)
        if fnmatchcase(".".join(parts[:count]), pattern)
    ]
    return max(matches, key=lambda each: each[0], default=(None, ""))[1]


def user_homes(graph: Graph, home: Home) -> dict[str, str]:
    """Return the home of each state for which the user gives one."""
    asked = {name: lives(graph.value[name].path, home) for name in graph.state}
    return {name: device for name, device in asked.items() if device}


def streamed(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph with this state streamed: kept only at home, and transferred in each call to other readers."""
    return replace(
        graph,
        streamed=tuple(name for name in graph.state if name in names),
        changing=tuple(name for name in graph.changing if name not in names),
        carried=tuple(name for name in graph.carried if name not in names),
    )


def _glob(pattern: str) -> bool:
    return any(letter in pattern for letter in "*?[")


def _means(pattern: str, path: str) -> bool:
    return pattern == path or (_glob(pattern) and fnmatchcase(path, pattern))


def _reached(
    graph: Graph, modules: Mapping[str, list[Task]], pattern: str, weights: Collection[str]
) -> dict[str, tuple[int, bool]]:
    """Return the tasks that a pin reaches, each with the length of the shortest matching path, and whether
    that is the path of a module."""
    if not pattern:
        return {task.name: (0, True) for task in graph.tasks}
    reached: dict[str, tuple[int, bool]] = {}
    for module in sorted((m for m in modules if _means(pattern, m)), key=_depth):
        for task in modules[module]:
            reached.setdefault(task.name, (_depth(module), True))
    for name in graph.state:
        if name not in weights and _means(pattern, graph.value[name].path):
            for reader in graph.readers[name]:
                reached.setdefault(reader, (_depth(graph.value[name].path), False))
    return reached


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _modules(graph: Graph) -> dict[str, list[Task]]:
    """Return every module path of the graph and its ancestors, with the tasks at or below it."""
    modules: dict[str, list[Task]] = {}
    for task in graph.tasks:
        path = task.module
        while path:
            modules.setdefault(path, []).append(task)
            path = path.rpartition(".")[0]
    return modules


def _unknown(pattern: str, known: list[str], what: str = "pin") -> PlanError:
    close = get_close_matches(pattern, known, n=3, cutoff=0.4)
    near = f"; near are {', '.join(map(repr, close))}" if close else ""
    if not known:
        return PlanError(f"the {what} {pattern!r} names nothing: no task of this graph comes from a module")
    some = "" if close else f"; there are {', '.join(sorted(known)[:5])}"
    return PlanError(f"the {what} {pattern!r} names no module, parameter or buffer of this model{near}{some}")


def _check_tied(graph: Graph, device_of: dict[str, str]) -> None:
    """Raise PlanError for tied weights pinned apart: a task outside the module that owns a weight reads it too."""
    for name in graph.state:
        first: dict[str, str] = {}
        owner = graph.value[name].path.rpartition(".")[0]
        tied = False
        for reader in graph.readers[name]:
            module = graph.task[reader].module
            tied |= bool(owner) and module != owner and not module.startswith(owner + ".")
            if reader in device_of:
                first.setdefault(device_of[reader], reader)
        if tied and len(first) > 1:
            (device, task), (other, rival) = list(first.items())[:2]
            raise PlanError(
                f"the weight {graph.value[name].path!r} is shared by {graph.task[task].where}, pinned to "
                f"{device}, and {graph.task[rival].where}, pinned to {other}; tied weights stay together: "
                "pin both to one device, or leave one unpinned"
            )
