"""The graphs of other modules that Dynamo calls by one graph; those whose module is gone are dropped."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import nn

from ..capture.region import Region

CompiledGraph: TypeAlias = Any
"""A `served.CompiledGraph`, which holds its `twins`."""


def twin_of(served: CompiledGraph, args: Sequence[Any]) -> CompiledGraph:
    """Return the graph for the module that a call of `served` is for; `served` if its own is gone.

    Dynamo calls one graph for all equal modules; `served.twins` are the graphs for the other ones.
    """
    first = id(served.region.first(args))
    found = served.twin.get(first)
    if found is None or found.region.is_other_module(args):
        found = next((twin for twin in served.twins if not twin.region.is_other_module(args)), None)
        if found is None:
            found = _made(served, args)
        # Rebuilt, since the twins' modules may have other tensors by now.
        served.twin = {id(twin.region.first()): twin for twin in served.twins}
        served.twin[first] = found
    return found


def _made(served: CompiledGraph, args: Sequence[Any]) -> CompiledGraph:
    session = served.session
    gone = [each for each in session.graphs if _orphaned(each)]
    for other in gone:
        _release(other)
    for twin in [each for each in served.twins if each in gone]:
        served.twins.remove(twin)
        # Removed one by one: Dynamo's thread may append others meanwhile.
        session.graphs.remove(twin)
    region = served.region.of(args, session.root)
    if served in gone:
        served.begin(region)
        return served
    twin = copy.copy(served)
    twin.twins, twin.twin = [], {}
    twin.begin(region)
    served.twins.append(twin)
    session.graphs.append(twin)
    return twin


def _orphaned(served: CompiledGraph) -> bool:
    """Return True if a module that held the state of a graph is gone."""
    return any(module() is None for module in served.owners)


def _release(served: CompiledGraph) -> None:
    """Drop the programs of a graph, and the state that they read."""
    served.forget(*served.programs)
    # Dynamo may still call it: its region then gets other state.
    owners = served.owners
    served.begin(served.region.without_state())
    served.owners = owners


def owners(region: Region, root: nn.Module | None) -> list[weakref.ref[nn.Module]]:
    """Return the modules that hold the state of a region."""
    held = {id(place.owner) for place in region.places if place.kind == "state"}
    modules = root.modules() if root is not None else ()
    return [
        weakref.ref(module)
        for module in modules
        if id(module._parameters) in held or id(module._buffers) in held
    ]
