"""Symbolic sizes of a capture, and their numbers in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from .refusals import Untraceable

OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of symbolic sizes."""
_PLAIN: dict[Any, Any] = dict(zip(OPEN, (int, float, bool)))


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


def expressions(symbols: Sequence[torch.SymInt]) -> tuple[sympy.Expr, ...]:
    """Return symbolic sizes as expressions in the sizes of arguments."""
    return tuple(size.node.shape_env.replace(size.node.expr) for size in symbols)


def resolver(fakes: Sequence[Any], given: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the function from a fake result to the same with the plain sizes of one call; tensors that share memory
    still share it.

    `fakes`: of the placeholders. `given`: the call's arguments. None of this makes a guard: computing a number from a
    symbol itself would fix it for all calls. The function raises Untraceable for a size that depends on the values in a
    tensor.
    """
    numbers: dict[Any, Any] = {}
    for fake, actual in zip(fakes, given):
        for size, number in zip(_sizes(fake), _sizes(actual)):
            if isinstance(size, OPEN) and size.node.expr.is_Symbol:
                numbers.setdefault(size.node.expr, sympy.sympify(number))
    known: dict[Any, Any] = {}
    storages: dict[int, Any] = {}

    def plain(size: Any) -> Any:
        expression = size.node.expr
        if expression not in known:
            found = expression.xreplace(numbers)
            if found.free_symbols:
                found = size.node.shape_env.replace(expression).xreplace(numbers)
            if found.free_symbols:
                raise Untraceable(f"the size {expression} depends on the values in a tensor")
            known[expression] = _PLAIN[type(size)](found)
        return known[expression]

    def at(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(at, value))
        if isinstance(value, OPEN):
            return plain(value)
        if not is_open(value):
            return value
        memory = value.untyped_storage()._cdata
        if memory not in storages:
            # Of a view of something larger no symbol of the call says how large: it grows with what is seen of it.
            storages[memory] = torch.UntypedStorage(0, device="meta")
        made = torch.empty(0, dtype=value.dtype, device="meta")
        return made.set_(storages[memory], at(value.storage_offset()), at(value.shape), at(value.stride()))

    return at


def _sizes(item: Any) -> tuple[Any, ...]:
    return (*item.shape, *item.stride()) if isinstance(item, torch.Tensor) else (item,)
