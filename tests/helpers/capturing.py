"""The graphs of calls as `autopar.plan` captures them, for tests of what is done with graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autopar.capture import Captured
from autopar.capture.ahead import ahead


def joint(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """A call as one graph, forward and backward where grad mode is on; its `flatten` takes what the model takes."""
    kwargs = kwargs or {}
    torch._dynamo.reset()
    captured, tensors = ahead(model, args, kwargs)
    places = {id(leaf): place for place, leaf in enumerate(pytree.tree_leaves((tuple(args), dict(kwargs))))}
    order = [(places.get(id(tensor)), tensor) for tensor in tensors]

    def flatten(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
        return [tensor if place is None else leaves[place] for place, tensor in order]

    return dataclasses.replace(captured, flatten=flatten)


def capture(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """The forward of a call as one graph."""
    with torch.no_grad():
        return joint(model, args, kwargs)
