"""Composite operators, which a joint graph must not decompose: decompositions suit only one kind of device.

Differentiated on a CPU, `scaled_dot_product_attention`, `lstm`, `embedding_bag` … become CPU kernels. During
tracing, each is therefore `autopar::<name>` (`rules`): one task in the forward and one in the backward,
computed by plain torch on the device of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from ...ir.graph import Task
from . import rules
from .define import KERNELS

__all__ = ["KERNELS", "LOOKUPS", "rules"]


def body(task: Task) -> Callable[..., Any] | None:
    """Return a function of a composite's arguments that computes it by ATen operators; None if none does."""
    if task.target == "autopar.embedding_bag.default":
        _, _, offsets, weights, _, mode, _, padding = task.args
        plain = offsets is None and weights is None and padding is None
        return {0: _summed, 1: _averaged}.get(mode) if plain and isinstance(mode, int) else None
    return None


def _summed(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return functional.embedding(indices, weight).sum(1)


def _averaged(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return _summed(weight, indices) / max(1, indices.shape[1])


LOOKUPS = (_summed, _averaged)
"""Bodies that look up rows: their first argument is the table, their second the ids."""
