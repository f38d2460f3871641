"""The results of a graph from the inputs of its program, and the model's output from these, without the code that
Dynamo has generated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from ..capture.torch_private import pytree
from ..runtime.inline_call import chosen
from ..runtime.tuned import TunedExecutor
from ..training.dropin import Training
from .backend import Planned
from .served import Served

Results: TypeAlias = Callable[[Sequence[Any]], list[Any] | None]
"""A function from the inputs of a program to the results of its graph; it returns None for a call that must take the
long way."""


def results_of(
    served: Served, prepared: Planned, inputs: Sequence[Any], sizes: Sequence[Any]
) -> Results | None:
    """Return the results of calls like that with these `inputs` and `sizes`; None if they have more to do.

    The caller ensures that the state is that of the region now, and that only the values of arguments have changed.
    """
    call = _results_of(served, prepared, inputs, sizes)
    if call is None or not prepared.captured.stateful:
        return call
    filled = served.region.filled
    return lambda inputs: served.serialised(call, inputs, filled(inputs, sizes))


def _results_of(
    served: Served, prepared: Planned, inputs: Sequence[Any], sizes: Sequence[Any]
) -> Results | None:
    options, region = served.backend.options, served.region
    key = region.key(sizes)
    if key in served.unchecked or region.moved or region.counts.unread or prepared.captured.same:
        return None
    if isinstance(prepared, Training):
        if options.check == "always":
            return None
        return lambda inputs: served.run(prepared, region.filled(inputs, sizes))
    short = served.programs.shorten(key, prepared, region.filled(inputs, sizes))
    if short is None:
        return None
    executor, completed = prepared.executor, short.completed
    if not isinstance(executor, TunedExecutor):
        return None if executor.inline is None else lambda inputs: completed(executor(inputs))
    if not executor.holds:
        # PyTorch's own kernels have won; they read the weights as these are in each call.
        eager = executor.plain
        if eager.inline is None:
            return None
        return lambda inputs: None if executor.holds else completed(eager(inputs))
    kernels = executor.by_kernels

    def by_kernels(inputs: Sequence[Any]) -> list[Any] | None:
        outputs = kernels(inputs)
        return outputs if outputs is None else completed(outputs)

    return by_kernels


def maker(found: list[Any], output: Any) -> Callable[[list[Any]], Any] | None:
    """Return the function from the results of a graph to the model's output; None if it needs anything else."""
    place = {id(item): at for at, item in enumerate(found)}
    if len(place) < len(found) or any(not isinstance(item, torch.Tensor) for item in found):
        return None
    kind, keyed = type(output), isinstance(output, dict)
    # Classes with fields, such as the outputs of transformers, are made from the fields that are not None.
    made = keyed and dataclasses.is_dataclass(output) and kind in pytree.SUPPORTED_NODES
    if made and vars(output).keys() != {field.name for field in dataclasses.fields(output)}:
        return None
    if isinstance(output, torch.Tensor):
        items = [output]
    else:
        items = list(output.values() if keyed else output) if made or kind in (tuple, list, dict) else []
    # The model may have set attributes of an output, which a new result would lack.
    if not items or any(id(item) not in place or vars(item) for item in items):
        return None
    if isinstance(output, torch.Tensor):
        return itemgetter(place[id(output)])
    pick = chosen([place[id(item)] for item in items])
    if not keyed:
        return lambda results: kind(pick(results))
    names = [*output]
    if kind is dict:
        return lambda results: dict(zip(names, pick(results)))
    return lambda results: kind(**dict(zip(names, pick(results))))
