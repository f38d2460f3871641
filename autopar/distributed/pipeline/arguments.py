"""The arguments of a captured model by name, and what later calls must have in common with them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...errors import PlanError


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments with which a model was captured, and with which it must be called again.

    example: their leaves by place, such as `batch['mask']`; tensors without memory.
    names: input nodes of the graph for these leaves, in the same order.
    """

    model: nn.Module
    example: Mapping[str, Any]
    names: tuple[str, ...]

    @staticmethod
    def captured(
        model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
    ) -> Call:
        """Return the call of a capture with these arguments, and the names of its input nodes."""
        example = {
            place: torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
            for place, leaf in _leaves(model, args, kwargs).items()
        }
        return Call(model, example, tuple(names))

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a call gives to each input, by node name. Raises PlanError if it has other arguments than the
        captured call, tensors of other sizes but for their rows, or other values than tensors: all of these are
        constants of the graph, and stages would wait for messages of these sizes."""
        found = _leaves(self.model, args, kwargs)
        if found.keys() != self.example.keys():
            raise PlanError(
                f"the model was captured with {', '.join(self.example)}, and is called with "
                f"{', '.join(found) or 'nothing'}; give what example_inputs had"
            )
        for place, known in self.example.items():
            was, now = _form(known), _form(found[place])
            if was != now:
                remedy = "give batches of these sizes, padded if need be" if "rows" in was else "give that"
                raise PlanError(
                    f"{place} was {was} in example_inputs, for which the stages were made, and is {now} now; {remedy}, "
                    "or distribute again with the new ones"
                )
        return {name: found[place] for place, name in zip(self.example, self.names)}


def _form(value: Any) -> str:
    """Return the dtype of a tensor and its sizes but for the rows, or the text of another value."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"rows of {[*value.shape[1:]]} in {str(value.dtype).removeprefix('torch.')}"


def bound(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in the order of the parameters of `forward`, by position where possible; what
    does not fit these parameters stays as it is."""
    try:
        found = inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return tuple(args), dict(kwargs)
    return found.args, found.kwargs


def _leaves(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a call's arguments by their places, such as `batch['mask']`, in the order of a capture."""
    try:
        named = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = {"args": tuple(args), "kwargs": dict(kwargs)}
    return {
        f"{getattr(path[0], 'key', '')}{pytree.keystr(path[1:])}": leaf
        for path, leaf in pytree.tree_flatten_with_path(named)[0]
    }
