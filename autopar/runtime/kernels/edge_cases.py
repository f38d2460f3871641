"""Values on which libraries differ from PyTorch, and which the comparison with eager seldom meets: rows of
attention whose mask excludes every key, large numbers, empty tensors, and integers out of range. Also
operators that one of the libraries lacks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from ...ops.composites import LOOKUPS
from .differences import EXACT
from .library import Call
from .piece_module import copied

_aten = torch.ops.aten
_EMBEDDINGS = (_aten.embedding.default, *LOOKUPS)
_BY_AXIS = (_aten.index_select.default, _aten.gather.default, _aten.index_copy.default)
_BY_IDS = (_aten.index.Tensor, _aten.index_put.default)


def exact(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of the module without the operators for which a library gives other results than PyTorch, or has
    no form."""
    module = copied(module)
    for operation, function in _EXACT.items():
        for node in module.graph.find_nodes(op="call_function", target=operation):
            node.target = function
    module.recompile()
    return module


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute attention, 0 where a mask excludes every key; libraries give NaN or the mean of `value`."""
    mask = kwargs.pop("attn_mask", mask)
    attended = functional.scaled_dot_product_attention(query, key, value, mask, *args, **kwargs)
    if mask is None:
        return attended
    included = mask if mask.dtype is torch.bool else mask != -torch.inf
    return attended.where(included.any(-1, keepdim=True), 0.0)


def _log_sigmoid(tensor: Tensor) -> Tensor:
    """Compute the log sigmoid as softplus: libraries take the logarithm of the sigmoid, which is zero below -88."""
    return -functional.softplus(-tensor)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate without `torch.tensor([])`, with which caches of transformers begin: PyTorch ignores it among tensors
    of any shape, OpenVINO does not."""
    return torch.cat([tensor for tensor in tensors if tensor.shape != (0,)] or list(tensors), dim)


def _diff(
    tensor: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Subtract neighbours by plain operators, since ONNX lacks `diff`."""
    tensor = torch.cat([part for part in (prepend, tensor, append) if part is not None], dim)
    for _ in range(n):
        later, earlier = (tensor.narrow(dim, start, tensor.shape[dim] - 1) for start in (1, 0))
        tensor = torch.bitwise_xor(later, earlier) if tensor.dtype is torch.bool else later - earlier
    return tensor


_EXACT: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.log_sigmoid.default: _log_sigmoid,
    torch.ops.aten.cat.default: _cat,
    torch.ops.aten.diff.default: _diff,
    # Converters know these by one name.
    torch.ops.aten.__and__.Tensor: torch.bitwise_and,
    torch.ops.aten.__or__.Tensor: torch.bitwise_or,
    torch.ops.aten.__xor__.Tensor: torch.bitwise_xor,
}


def in_range(call: Call, module: fx.GraphModule, inputs: Sequence[Tensor], narrow: bool = False) -> Call:
    """Return a kernel that runs calls with integers out of range by PyTorch's operators, for eager's result
    or error.

    An id is out of range if the table that a piece looks it up in, a weight or an argument, lacks it;
    libraries may then read the last row or zeros. If a whole argument is looked up in several weights, ids must be in
    each; if parts of it are, in one. A `narrow` library computes with integers as int32 or float32, so
    those above `EXACT` are out of range.
    """
    arguments = list(zip(module.graph.find_nodes(op="placeholder"), inputs))
    places = {node: at for at, (node, _) in enumerate(arguments)}
    integers = {
        node: places[node]
        for node, tensor in arguments
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel()
    }
    limits = dict.fromkeys(integers.values(), (-EXACT, EXACT)) if narrow else {}
    tables: list[tuple[int, int, int, bool]] = []
    parts: dict[int, tuple[int, int]] = {}
    whole: dict[int, tuple[int, int]] = {}
    for table, axis, ids, signed in _lookups(module):
        source, partly = _viewed(ids)
        at = integers.get(source)
        if at is None:
            continue
        if table in places and inputs[places[table]].dim() and not partly:
            tables.append((at, places[table], axis, signed))
        weight = getattr(module, str(table.target)) if table.op == "get_attr" else None
        if weight is not None and weight.dim():
            least, most = -weight.shape[axis] if signed else 0, weight.shape[axis] - 1
            if partly:
                low, high = parts.get(at, (least, most))
                parts[at] = min(low, least), max(high, most)
            else:
                low, high = whole.get(at, (least, most))
                whole[at] = max(low, least), min(high, most)
    for at, (least, most) in parts.items():
        low, high = whole.get(at, (least, most))
        whole[at] = max(low, least), min(high, most)
    limits |= whole
    if not limits and not tables:
        return call

    def checked(*tensors: Tensor) -> Any:
        bounds = dict(limits)
        for at, table, axis, signed in tables:
            size = tensors[table].shape[axis]
            least, most = bounds.get(at, (-size, size - 1))
            bounds[at] = max(least, -size if signed else 0), min(most, size - 1)
        for at, (least, most) in bounds.items():
            low, high = tensors[at].aminmax()
            if int(low) < least or int(high) > most:
                # Not `module(...)`: if that fails, torch prints the module's code.
                return module.forward(*tensors)
        return call(*tensors)

    return checked


def _lookups(module: fx.GraphModule) -> Iterator[tuple[fx.Node, int, fx.Node, bool]]:
    """Yield each look-up in a piece: the table, the axis along which ids count, the ids, and whether negative ones
    count from the end."""
    for node in (
        node for target in _BY_IDS for node in module.graph.find_nodes(op="call_function", target=target)
    ):
        for axis, ids in enumerate(node.args[1]):
            if isinstance(ids, fx.Node):
                yield node.args[0], axis, ids, True
    for target in (*_EMBEDDINGS, *_BY_AXIS):
        for node in module.graph.find_nodes(op="call_function", target=target):
            table, *axis, ids = node.args[: 2 if target in _EMBEDDINGS else 3]
            if isinstance(ids, fx.Node):
                yield table, (axis or [0])[0], ids, False


def _viewed(node: Any) -> tuple[Any, bool]:
    """Return the tensor that a node is a view, copy or cast of, and True if the node is only a part of the tensor."""
    partly = False
    while node.target is operator.getitem or getattr(node.target, "is_view", False) or _cast(node.target):
        partly |= getattr(node.target, "_opname", "") not in _WHOLE and not _cast(node.target)
        node = node.args[0]
    return node, partly


def _cast(target: Any) -> bool:
    return getattr(target, "overloadpacket", None) in (_aten.to, _aten._to_copy, _aten.clone)


_WHOLE = frozenset({
    "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "transpose", "t", "expand", "flatten",
    "alias", "detach", "contiguous",
})  # fmt: skip
"""Views of all elements of a tensor."""
