"""Results of a call for its sizes: the strides of tensors, and plain numbers; and a captured graph for other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..ir.costed import CostedGraph
from ..ir.graph import UPDATES, Graph
from .captured import Captured, strides_of
from .region import Region
from .sizes import resolver


def results(region: Region, at: Callable[[Any], Any], graph: Graph) -> dict[str, Any]:
    """Return `rebuild`, `strides` and `alike` of a `Captured` for the sizes of one call, which `at` puts into fakes."""
    fakes = [at(result.fake) for result in region.results]
    tensors = [place for place, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    # torch 2.11 traces the last states of an LSTM with an extra axis.
    strides = [
        wanted if wanted and len(wanted) == len(graph.value[name].shape) else None
        for name, wanted in zip(graph.outputs, (strides_of(fakes[place]) for place in tensors))
    ]
    changed = dict(region.traced.updates)

    def made(place: int) -> Any:
        result = region.results[place]
        node = region.traced.outputs[result.index] if result.index >= 0 else changed.get(result.same)
        return fakes[place] if node is None else at(region.open.get(node, node.meta.get("val")))

    alike = tuple(strides_of(made(place)) == wanted for place, wanted in zip(tensors, strides))
    known = [None if isinstance(fake, torch.Tensor) else fake for fake in fakes]

    def rebuild(values: Sequence[Any]) -> list[Any]:
        """Return the results of the region, tensors and plain numbers, from the outputs of the graph."""
        found = list(known)
        for place, value in zip(tensors, values):
            found[place] = value
        return found

    return {"rebuild": rebuild, "strides": strides, "alike": alike}


def resizable(captured: Captured, costed: CostedGraph) -> bool:
    """Return True if what is planned also computes calls with other sizes: no time is declared, and there are only
    captured tasks, with all their `OpenSize` arguments, and updates of parameters, which have none."""
    own = captured.graph.task
    return (
        captured.open is not None
        and costed.machine.clock == "real"
        and all(
            task.target in UPDATES or repr(task) == repr(own.get(task.name)) for task in costed.graph.tasks
        )
    )


def resized(region: Region, captured: Captured, given: Sequence[Any]) -> Captured:
    """Return a capture with the sizes of the call `given`, and what that call returns; its graph stays the one of the
    call that it was made for."""
    assert captured.open is not None
    at = resolver(region.fakes, given)
    sizes = tuple(map(at, captured.open))
    return replace(captured, sizes=sizes, **results(region, at, captured.graph))


def with_sizes(captured: Captured, other: Captured) -> Captured:
    """Return a capture with the sizes of another capture of its region, and with what a call of these returns."""
    return replace(
        captured, sizes=other.sizes, rebuild=other.rebuild, strides=other.strides, alike=other.alike
    )
