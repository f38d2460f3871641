"""`embedding_bag`, whose kernels return different things on different devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .define import define

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
    out: Tensor = _aten.embedding_bag.padding_idx(
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
    return out


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


def rows(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`torch.nn.functional.embedding_bag`, whose bags stay the rows of a matrix if they are that: then the batch may
    be cut."""
    if input.ndim != 2 or offsets is not None or max_norm is not None or sparse or not input.numel():
        found: Tensor = functional.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
        return found
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    number = ("sum", "mean", "max").index(mode)
    made: Tensor = embedding_bag.forward(
        weight, input, None, per_sample_weights, scale_grad_by_freq, number, False, padding_idx
    )
    return made
