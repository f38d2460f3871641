"""Split rules by ATen operator: axes that may be split, and how outputs rejoin.

The rules correspond to DTensor's operator strategies for shards (`torch.distributed.tensor._ops`), but for
parts of any proportion: a cut names one axis of each tensor, and part i of k takes the same share of each. An
operator without a rule has no cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...ir.graph import Cut
from ...ops import tensors
from ..torch_private import OpOverload

# Imported because they register their rules.
from . import linear, reduce, shape  # noqa: F401
from .backward import composite
from .pointwise import pointwise
from .registry import RULES, Call, Way

_REFUSED = frozenset(
    {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
)
_TAGGED_BUT_SAFE = frozenset(
    {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"}
    | {"aten::scaled_dot_product_attention", "aten::rrelu", "aten::native_dropout"}
    | {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"}
    | {"aten::_scaled_dot_product_flash_attention_for_cpu", "autopar::scaled_dot_product_attention"}
    | {"aten::index", "aten::one_hot"}
)
"""Operators that are random or data-dependent only for some arguments; their rules check these."""


def cuts(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> tuple[Cut, ...]:
    """Return the ways to split `target(*args, **kwargs)`; empty if no rule proves one.

    The rules read only shapes and dtypes of the tensors, real or fake. `Cut.inputs` has one axis for each
    distinct tensor object, in argument order, args before kwargs; `Cut.outputs` has one for each output (each
    item of a sequence). Random, in-place and data-dependent operators have no cut.
    """
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return ()
    name = target._schema.name
    if name not in _TAGGED_BUT_SAFE and not _REFUSED.isdisjoint(target.tags):
        return ()
    rule = RULES.get(name)
    if rule is None and name.startswith("autopar::"):
        rule = composite
    if rule is None and torch.Tag.pointwise in target.tags:
        rule = pointwise
    if rule is None:
        return ()
    inputs = {id(tensor): tensor for tensor in tensors((*args, *kwargs.values()))}
    call = Call(target, args, kwargs, output)
    outputs = [item for item in call.outputs if isinstance(item, torch.Tensor)]
    if any(type(size) is not int for tensor in (*inputs.values(), *outputs) for size in tensor.shape):
        return ()
    distinct = {cut: None for way in rule(call) for cut in _resolve(call, way, inputs)}
    return tuple(distinct)


def _resolve(call: Call, way: Way, inputs: Mapping[int, torch.Tensor]) -> Iterator[Cut]:
    """Yield the way as a Cut over distinct tensors; none if it would split one tensor in two ways at once."""
    axes: dict[int, int | None] = {}
    for name, item, tensor in call.tensors():
        axis = way.axis(name, item)
        if axes.setdefault(id(tensor), axis) != axis:
            return
        if axis is not None and axis >= 0 and tensor.shape[axis] < 2:
            return
    if all(axis is None for axis in axes.values()) and not way.scale:
        return
    outputs = way.output_axes(len(call.outputs))
    for axis, tensor in zip(outputs, call.outputs, strict=True):
        if axis is not None and axis >= 0 and tensor.shape[axis] < 2:
            return
    scale: list[tuple[int, ...]] = []
    for first, *path in way.scale:
        name = str(first)
        if name not in call.position:
            return
        scale.append((call.position[name], *map(int, path)))
    yield Cut(tuple(axes[key] for key in inputs), outputs, tuple(scale))
