"""Home devices of weights: `home=` as the user wrote it, resolved to the device of each state value of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias

from ..errors import PlanError
from ..ir.graph import Graph
from ..ir.machine import Machine

Home: TypeAlias = str | Mapping[str, str]
"""`"auto"`, the device of all weights, or module path, parameter path or glob of one → device."""

_STATE = "optimizer.state."


def require_home(home: Home, machine: Machine) -> None:
    """Raise PlanError for what is no home, and DeviceError for a device that the machine has not."""
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
    """The device on which the weight of a path lives, "" where the user leaves that open; the longest path wins."""
    if isinstance(home, str):
        return "" if home == "auto" else home
    found, depth = "", (-1, False)
    parts = path.removeprefix(_STATE).split(".")
    for pattern, device in sorted(home.items()):
        for count in range(len(parts), 0, -1):
            if fnmatchcase(".".join(parts[:count]), pattern):
                if (own := (count, "*" not in pattern)) > depth:
                    found, depth = device, own
                break
    return found


def homes_asked(graph: Graph, home: Home) -> dict[str, str]:
    """Of each state of a graph for which the user says so the device on which it lives."""
    asked = {name: lives(graph.value[name].path, home) for name in graph.state}
    return {name: device for name, device in asked.items() if device}


def streamed(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with this state kept at home alone: brought to who reads it elsewhere in each call, and given up."""
    return replace(
        graph,
        streamed=tuple(name for name in graph.state if name in names),
        changing=tuple(name for name in graph.changing if name not in names),
        carried=tuple(name for name in graph.carried if name not in names),
    )
