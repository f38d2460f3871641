"""Autocast: whether it is on, what is lowered while a call is traced, and which casts are made once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


def enabled(kind: str) -> bool:
    """True if autocast is on in this thread for devices of type `kind`."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def anywhere() -> bool:
    """True if autocast is on in this thread for devices of any type."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def off(kinds: Iterable[str]) -> Iterator[None]:
    """Without autocast for these types of devices."""
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_PRODUCTS = {
    "chain_matmul", "einsum", "inner", "linalg_matrix_power", "linalg_multi_dot", "matrix_power", "tensordot",
}  # fmt: skip
_RECURRENT = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


class Lowered(TorchFunctionMode):
    """Calls that autocast lowers from within, lowered from without.

    Autocast casts what the operators of its lists read. `einsum`, `lstm` and others are in no list but made of some
    that are: kept whole, they would be recorded without casts and give another dtype than eager's.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _PRODUCTS or name in _RECURRENT:
            leaves = pytree.tree_leaves((args, kwargs))
            kind = next((leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)), "")
            # On a CPU only the products within a GRU are lowered, not what it hands on.
            if kind and enabled(kind) and not (name == "gru" and kind == "cpu"):
                goal = torch.get_autocast_dtype(kind)
                args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, kind, goal), (args, kwargs))
        return function(*args, **kwargs)


def _cast(leaf: Any, kind: str, goal: torch.dtype) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != kind:
        return leaf
    return leaf.to(goal) if leaf.is_floating_point() and leaf.dtype is not torch.float64 else leaf


class Casts(TorchFunctionMode):
    """Autocast's cache of cast weights until its outermost region ends, so that the gradients of all uses meet in
    the low precision.

    Autocast keeps nothing of a tensor that is no leaf, as the inputs of a module that is traced are not.
    """

    def __init__(self, weights: list[Any]) -> None:
        self.weights = {id(tensor) for tensor in weights}
        self.kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.weights and getattr(function, "__name__", "") in _LOWERED:
            args, kwargs = pytree.tree_map(self._cast, (tuple(args), dict(kwargs)))
        return function(*args, **kwargs)

    def forget(self) -> None:
        """An autocast region has ended: after the outermost nothing is kept."""
        if not torch.is_autocast_enabled("cpu") and not any(enabled(key[3]) for key in self.kept):
            self.kept.clear()

    def _cast(self, item: Any) -> Any:
        if id(item) not in self.weights or not enabled(item.device.type):
            return item
        kind = item.device.type
        dtype = torch.get_autocast_dtype(kind)
        key = (id(item), dtype, torch.is_grad_enabled(), kind)
        if key not in self.kept:
            self.kept[key] = item.to(dtype)
        return self.kept[key]


_LOWERED = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addr", "addbmm", "baddbmm",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "prelu",
})  # fmt: skip
"""Functions whose weights autocast casts down once and keeps."""
