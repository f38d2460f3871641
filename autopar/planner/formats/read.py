"""A task graph from wherever it is: a file, parsed JSON, a networkx graph, a costed graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Union

import networkx

from ...errors import DeviceError
from ...ir.costed import CostedGraph
from ...ir.machine import Machine
from ...system import jsonfile
from . import dnn_partitioning as msr
from . import from_networkx as networks
from . import graph_file as own
from . import stg

Source: TypeAlias = Union[CostedGraph, Mapping[str, Any], networkx.DiGraph, str, "os.PathLike[str]"]
"""What a task graph is read from."""
WAY = "write a graph as a JSON object of four lists"
"""What to do instead, for error messages."""


def read(source: Source, machine: Machine | int | None = None) -> CostedGraph:
    """The task graph of a source, on `machine` if one is given instead of the one that the source brings.

    Raises PlanError or DeviceError with one sentence.
    """
    if isinstance(source, CostedGraph):
        on = _machine(machine)
        return _on(source, on) if on else source
    name, data = plain(source, machine)
    return own.costed(data, name, machine if isinstance(machine, Machine) else None)


def plain(source: Source, machine: Machine | int | None = None) -> tuple[str, Any]:
    """A name for the graph of a source that is not costed yet, and the graph as parsed JSON of autopar's format.

    A path that ends in `.stg` is a graph of the Standard Task Graph set, for which `machine` is the number of
    processors; JSON with `nodes` and `edges` is a graph of the dnn-partitioning set.
    """
    name: str = "graph"
    data: Any = source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name = path.stem
        if path.suffix.lower() == ".stg":
            return name, stg.described(jsonfile.text(path, WAY), _processors(machine, path))
        data = jsonfile.load(path, WAY)
    on = _machine(machine)
    if isinstance(data, networkx.Graph):
        return str(data.name or name), networks.described(data, on)
    if msr.is_partitioning(data):
        data = msr.described(msr.partitioning(data))
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
            f"a number of processors ({machine}) goes with .stg files alone; leave it out, as other graphs bring "
            "their devices"
        )
    raise DeviceError(
        f"machine={machine!r} is no Machine; give one, or leave it out where the graph brings it"
    )


def _processors(machine: Machine | int | None, path: Path) -> int:
    if isinstance(machine, int) and not isinstance(machine, bool) and machine > 0:
        return machine
    given = "" if machine is None else f", and {machine!r} is no number of them"
    raise DeviceError(
        f"{path.name} does not say on how many processors it is to be planned{given}; give a number of them, such as 4 "
        "(on the command line --processors 4)"
    )
