"""Calls that autocast lowers from within, lowered from without while a call is traced.

Autocast casts what the operators of its lists read. `einsum`, `lstm` and others are in no list but made of some that
are: kept whole, they would be recorded without casts and give another dtype than eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from . import autocast as casting

_PRODUCTS = {
    "chain_matmul", "einsum", "inner", "linalg_matrix_power", "linalg_multi_dot", "matrix_power", "tensordot",
}  # fmt: skip
_RECURRENT = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


class Lowered(TorchFunctionMode):
    """Casts the float32 and half-precision arguments of such calls where autocast is on for their device."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _PRODUCTS or name in _RECURRENT:
            leaves = pytree.tree_leaves((args, kwargs))
            kind = next((leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)), "")
            # On a CPU only the products within a GRU are lowered, not what it hands on.
            if kind and casting.enabled(kind) and not (name == "gru" and kind == "cpu"):
                goal = torch.get_autocast_dtype(kind)
                args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, kind, goal), (args, kwargs))
        return function(*args, **kwargs)


def _cast(leaf: Any, kind: str, goal: torch.dtype) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != kind:
        return leaf
    return leaf.to(goal) if leaf.is_floating_point() and leaf.dtype is not torch.float64 else leaf
