"""The graphs that Dynamo captures of a model, for tests of what is done with them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import autopar
from autopar.session.compiled_graph import CompiledGraph
from autopar.session.model_session import Planned


def served(
    model: Any, *args: Any, devices: Any = ("cpu",), **options: Any
) -> tuple[CompiledGraph, Planned, tuple[Any, ...]]:
    """The first graph of a call, its program, and the arguments that Dynamo gives them. Nothing is run."""
    given: list[tuple[Any, ...]] = []
    call = CompiledGraph.__call__

    def kept(own: CompiledGraph, *tensors: Any) -> Any:
        given.append(tensors)
        return call(own, *tensors)

    fast = autopar.compile(model, list(devices), **options)
    with mock.patch.object(CompiledGraph, "__call__", kept):
        fast.prepare(*args)
    found, prepared = fast._placement.session.ready()
    return found, prepared, given[0]
