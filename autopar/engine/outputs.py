"""The output of a model, made from the results of its graph without the code that Dynamo has generated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from ..capture.torch_private import pytree
from ..runtime.inline_call import chosen


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
