"""Composites as ATen operators, for compilers other than PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from ..ir.graph import Task


def body(task: Task) -> Callable[..., Any] | None:
    """Return a function of a composite's arguments that computes it by ATen operators; None if there is none."""
    if task.target == "autopar.embedding_bag.default":
        _, _, offsets, weights, _, mode, _, padding = task.args
        plain = offsets is None and weights is None and padding is None
        return {0: _summed, 1: _averaged}.get(mode) if plain and isinstance(mode, int) else None
    return None


def _summed(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return functional.embedding(indices, weight).sum(1)


def _averaged(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return _summed(weight, indices) / max(1, indices.shape[1])
