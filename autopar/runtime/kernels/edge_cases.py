"""Values on which libraries differ from PyTorch and that the comparison with eager seldom meets: rows of attention
whose mask excludes every key, large numbers, empty tensors, and integers out of range."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from ...ops.composites import LOOKUPS
from .stack import Compilation

_EMBEDDINGS = (torch.ops.aten.embedding.default, *LOOKUPS)
_NARROW = torch.iinfo(torch.int32)


def exact(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module, changed so that what a library makes of it agrees with PyTorch where the library's form of an
    operator does not."""
    for operation, function in _EXACT.items():
        for node in module.graph.find_nodes(op="call_function", target=operation):
            node.target = function
    module.recompile()
    return module


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Attention that is zero where a mask excludes every key: libraries make it NaN, or the mean of all values."""
    mask = kwargs.pop("attn_mask", mask)
    made = functional.scaled_dot_product_attention(query, key, value, mask, *args, **kwargs)
    if mask is None:
        return made
    seen = mask if mask.dtype is torch.bool else mask != -torch.inf
    return made.where(seen.any(-1, keepdim=True), 0.0)


def _log_sigmoid(given: Tensor) -> Tensor:
    """Libraries take the logarithm of the sigmoid, which is zero below -88."""
    return -functional.softplus(-given)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """PyTorch ignores `torch.tensor([])` among tensors of any shape, as caches of transformers begin; OpenVINO does
    not."""
    return torch.cat([tensor for tensor in tensors if tensor.shape != (0,)] or list(tensors), dim)


_EXACT: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.log_sigmoid.default: _log_sigmoid,
    torch.ops.aten.cat.default: _cat,
}


def in_range(call: Callable[..., Any], work: Compilation, narrow: bool = False) -> Callable[..., Any]:
    """Return a kernel that computes calls with integers out of range by PyTorch's operators, whose result or error is
    eager's.

    Out of range is an id that is in no table that the piece looks it up in, where a library may read the last row or
    zeros; and for a `narrow` library, which computes in int32, an int64 beyond that.
    """
    module = work.module
    given = zip(module.graph.find_nodes(op="placeholder"), work.examples)
    integers = {
        node: at
        for at, (node, tensor) in enumerate(given)
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel()
    }
    limits = dict.fromkeys(integers.values(), (_NARROW.min, _NARROW.max)) if narrow else {}
    last: dict[int, int] = {}
    for target in _EMBEDDINGS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            table: Any = node.args[0]
            at = integers.get(_viewed(node.args[1]))
            if at is not None and table.op == "get_attr":
                last[at] = max(last.get(at, 0), len(getattr(module, table.target)) - 1)
    limits |= {at: (0, most) for at, most in last.items()}
    if not limits:
        return call

    def checked(*tensors: Tensor) -> Any:
        for at, (least, most) in limits.items():
            low, high = tensors[at].aminmax()
            if int(low) < least or int(high) > most:
                return module(*tensors)
        return call(*tensors)

    return checked


def _viewed(node: Any) -> Any:
    """Return the tensor that a node is a view of."""
    while node.target is operator.getitem or getattr(node.target, "is_view", False):
        node = node.args[0]
    return node
