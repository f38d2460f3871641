"""Symbolic sizes and numbers of what Dynamo captures."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of symbolic sizes."""


def extents_of(item: Any) -> tuple[Any, ...]:
    """Return the shape and strides of a tensor; a number by itself."""
    return (*item.shape, *item.stride()) if isinstance(item, torch.Tensor) else (item,)


def symbols_in(items: Sequence[Any]) -> tuple[tuple[int, int, sympy.Symbol], ...]:
    """Return (position of the item, place among its extents, symbol) for each symbol of a size, where it is first."""
    found: dict[sympy.Symbol, tuple[int, int]] = {}
    for position, item in enumerate(items):
        for place, size in enumerate(extents_of(item) if is_open(item) else ()):
            if isinstance(size, OPEN) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (position, place))
    return tuple((position, place, symbol) for symbol, (position, place) in found.items())


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """Return the symbols on which a number, or the layout of each tensor in `value`, depends."""
    found = set[sympy.Symbol]()
    for item in filter(is_open, pytree.tree_leaves(value)):
        offset = (item.storage_offset(),) if isinstance(item, torch.Tensor) else ()
        for size in (*extents_of(item), *offset):
            if isinstance(size, OPEN):
                found |= size.node.expr.free_symbols
    return found


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


class _Undefined(ArithmeticError, ValueError):
    """Python's `math` cannot compute a number; as its error is a ValueError."""


def computed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the number that a function of Python's returns. Raises ArithmeticError where that raises an error."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise _Undefined(str(error)) from error


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "__floordiv__": operator.floordiv,
    "__rfloordiv__": lambda number, other: other // number,
    "__mod__": operator.mod,
    "__rmod__": lambda number, other: other % number,
}
"""Methods of numbers that divide to whole numbers."""


def divided(method: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a method for `//` or `%` of symbolic numbers that is Python's if one of them is a float.

    torch's `method` rounds the quotient before it takes the whole part: for it, `1.0 // 0.2` is 5, and not 4.
    """

    def divide(number: Any, other: Any) -> Any:
        given: list[Any] = [number, other]
        floats = any(isinstance(each, (float, torch.SymFloat)) for each in given)
        if not floats or not isinstance(other, (int, float, *OPEN)):
            return method(number, other)
        if name == "__floordiv__" and isinstance(other, (int, float)) and abs(math.frexp(other)[0]) == 0.5:
            return method(number, other)  # exact, by a power of two
        if "mod" in name and any(isinstance(each, OPEN) and each.node.expr.free_symbols for each in given):
            return method(number, other)  # computed anew in each call
        # No formula of torch's gives Python's result: it holds for these values alone, by guards.
        a, b = (int(each) if isinstance(each, torch.SymInt) else float(each) for each in given)
        return torch.SymFloat(number.node.wrap_float(DIVISIONS[name](a, b)))

    return divide
