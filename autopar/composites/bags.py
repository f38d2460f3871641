"""`embedding_bag`, whose kernels return different things on different devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError
from .define import arguments, become, define

_aten = torch.ops.aten


def _call(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    scale_grad_by_freq: bool,
    mode: int,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Tensor:
    """The bags are the rows of `indices` where `offsets` is None."""
    if offsets is None:
        rows, length = indices.shape
        offsets = torch.arange(0, rows * length, max(1, length), device=indices.device)[:rows]
        indices = indices.reshape(-1)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)
    return _aten.embedding_bag.padding_idx(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        False,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )[0]


def _like(weight: Tensor, indices: Tensor, offsets: Tensor | None, *rest: Any) -> Tensor:
    *_, include_last_offset, _ = rest
    bags = indices.shape[0] if offsets is None else offsets.shape[0] - bool(include_last_offset)
    return weight.new_empty(bags, weight.shape[1])


embedding_bag = define(
    "embedding_bag",
    "Tensor weight, Tensor indices, Tensor? offsets, Tensor? per_sample_weights, bool scale_grad_by_freq, int mode, "
    "bool include_last_offset, int? padding_idx",
    "Tensor",
    _call,
    _like,
)


def swap_bag(node: torch.fx.Node) -> None:
    """One task each way, whose bags are rows where the module was given rows: then the batch may be cut.

    Raises CaptureError for `sparse=True`. A call whose second to fourth results are used stays as it is.
    """
    given = arguments(node)
    if given["sparse"]:
        raise CaptureError(
            "embedding_bag(sparse=True) has a sparse gradient, which no graph holds; build it with sparse=False"
        )
    if any(user.args[1] != 0 and user.users for user in node.users):
        return
    indices, offsets, weights = (given[name] for name in ("indices", "offsets", "per_sample_weights"))
    rows = _rows(indices, offsets)
    if rows is not None:
        flat = weights is None or (weights.target is _aten.reshape.default and weights.args[1] == [-1])
        if flat:
            indices, offsets = rows, None
            weights = weights and weights.args[0]
    for user in list(node.users):
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)
    node.meta["val"] = node.meta["val"][0]
    become(
        node,
        embedding_bag.forward,
        (
            given["weight"],
            indices,
            offsets,
            weights,
            given["scale_grad_by_freq"],
            given["mode"],
            given["include_last_offset"],
            given.get("padding_idx"),
        ),
    )


def _rows(indices: torch.fx.Node, offsets: torch.fx.Node) -> torch.fx.Node | None:
    """The matrix whose rows `torch.nn.functional.embedding_bag` made into bags, None when there was none."""
    if indices.target is not _aten.reshape.default or offsets.target is not _aten.arange.start_step:
        return None
    rows: Any = indices.args[0]
    shape = tuple(rows.meta["val"].shape)
    if len(shape) != 2 or 0 in shape or not all(type(size) is int for size in shape):
        return None
    return rows if tuple(offsets.args) == (0, shape[0] * shape[1], shape[1]) else None


SWAPS = {_aten.embedding_bag.padding_idx: swap_bag, _aten.embedding_bag.default: swap_bag}
