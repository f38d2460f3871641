"""Boolean masks of attention as the numbers that torch adds to the scores, made once for all layers that share one.

`scaled_dot_product_attention` makes them anew in each call, by three kernels.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ..ops.arguments import by_name

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default


def converted_once(graph: fx.Graph) -> None:
    """Let the attentions of a functional graph that share a boolean mask read one tensor with 0 where it is true and
    -inf elsewhere.

    In single and double precision only: for lower ones, cuDNN gets other numbers than -inf.
    """
    # Numbers become tensors of the default dtype.
    default = torch.get_default_dtype()
    if default not in (torch.float32, torch.float64):
        return
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        given = by_name(node.target, node.args, node.kwargs)
        mask, dtype = given["attn_mask"], given["query"].meta["val"].dtype
        if isinstance(mask, fx.Node) and mask.meta["val"].dtype is torch.bool and dtype is default:
            readers.setdefault(mask, []).append(node)
    for mask, nodes in readers.items():
        if len(nodes) > 1:
            _convert(graph, mask, nodes)


def _convert(graph: fx.Graph, mask: fx.Node, readers: list[fx.Node]) -> None:
    """Insert the numbers of a mask before their first reader, whose place in the user's code they get."""
    found = mask.meta["val"]
    with graph.inserting_before(readers[0]):
        made = graph.call_function(_aten.where.Scalar, (mask, 0.0, -math.inf))
    with found.fake_mode:
        made.meta = {**readers[0].meta, "val": _aten.where.Scalar(found, 0.0, -math.inf)}
    for node in readers:
        node.replace_input_with(mask, made)
