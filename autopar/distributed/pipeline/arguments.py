"""The arguments of a captured model by name, and what later calls must have in common with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...errors import PlanError


def given_like(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]:
    """Return a function from the arguments of a call to what they give to each input node of a graph that was captured
    with `args` and `kwargs`, by the `names` of these nodes.

    It raises PlanError if a call has other arguments than the captured one, tensors of other sizes but for their rows,
    or other values than tensors: all of these are constants of the graph, and stages would wait for messages of these
    sizes.
    """
    # Tensors without memory, by place, such as `batch['mask']`.
    example = {
        place: torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
        for place, leaf in _leaves(model, args, kwargs).items()
    }

    def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        found = _leaves(model, args, kwargs)
        if found.keys() != example.keys():
            raise PlanError(
                f"the model was captured with {', '.join(example)}, and is called with "
                f"{', '.join(found) or 'nothing'}; give what example_inputs had"
            )
        for place, known in example.items():
            was, now = _form(known), _form(found[place])
            if was != now:
                remedy = "give batches of these sizes, padded if need be" if "rows" in was else "give that"
                raise PlanError(
                    f"{place} was {was} in example_inputs, for which the stages were made, and is {now} now; {remedy}, "
                    "or distribute again with the new ones"
                )
        return {name: found[place] for place, name in zip(example, names)}

    return given


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
