"""Boolean masks of attention as the numbers that torch adds to the scores, made once for all layers that share one.

`scaled_dot_product_attention` makes them anew in each call, by three kernels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_MASK = 3
"""Position of the mask among the arguments."""


def converted_once(graph: fx.Graph) -> None:
    """Let the attentions of a functional graph that share a boolean mask read one tensor with 0 where it is true and
    -inf elsewhere.

    In single and double precision only: for lower ones, cuDNN gets other numbers than -inf.
    """
    readers: dict[tuple[fx.Node, torch.dtype], list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        mask, query = _mask(node), node.args[0]
        if isinstance(mask, fx.Node) and mask.meta["val"].dtype is torch.bool and isinstance(query, fx.Node):
            readers.setdefault((mask, query.meta["val"].dtype), []).append(node)
    for (mask, dtype), nodes in readers.items():
        # Numbers become tensors of the default dtype.
        if len(nodes) > 1 and dtype is torch.get_default_dtype() and dtype in (torch.float32, torch.float64):
            _convert(graph, mask, nodes)


def _mask(node: fx.Node) -> Any:
    return node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")


def _convert(graph: fx.Graph, mask: fx.Node, readers: list[fx.Node]) -> None:
    """Insert the numbers of a mask before their first reader, whose place in the user's code they get."""
    found = mask.meta["val"]
    with graph.inserting_before(readers[0]):
        made = graph.call_function(_aten.where.Scalar, (mask, 0.0, -math.inf))
    with found.fake_mode:
        made.meta = {**readers[0].meta, "val": _aten.where.Scalar(found, 0.0, -math.inf)}
    for node in readers:
        if len(node.args) > _MASK:
            node.update_arg(_MASK, made)
        else:
            node.update_kwarg("attn_mask", made)
