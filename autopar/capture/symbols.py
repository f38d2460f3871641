"""Symbolic sizes and numbers of what Dynamo captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from .torch_private import pytree

OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of symbolic sizes."""


def extents_of(item: Any) -> tuple[Any, ...]:
    """Return the shape and strides of a tensor; a number by itself."""
    return (*item.shape, *item.stride()) if isinstance(item, torch.Tensor) else (item,)


def symbols_in(items: Sequence[Any]) -> tuple[tuple[int, int, sympy.Symbol], ...]:
    """Return (position of the item, place among its extents, symbol) for each symbol of a size, where it is first."""
    first: dict[sympy.Symbol, tuple[int, int]] = {}
    for position, item in enumerate(items):
        for place, size in enumerate(extents_of(item) if is_open(item) else ()):
            if isinstance(size, OPEN) and size.node.expr.is_Symbol:
                first.setdefault(size.node.expr, (position, place))
    return tuple((position, place, symbol) for symbol, (position, place) in first.items())


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """Return the symbols on which a number, or the layout of each tensor in `value`, depends."""
    symbols = set[sympy.Symbol]()
    for item in filter(is_open, pytree.tree_leaves(value)):
        offset = (item.storage_offset(),) if isinstance(item, torch.Tensor) else ()
        for size in (*extents_of(item), *offset):
            if isinstance(size, OPEN):
                symbols |= size.node.expr.free_symbols
    return symbols


def is_open(value: Any) -> bool:
    """Return True if a result has a symbolic size."""
    if isinstance(value, (tuple, list)):
        return any(map(is_open, value))
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return False
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        return any(isinstance(size, torch.SymInt) for size in sizes)
    return isinstance(value, OPEN)
