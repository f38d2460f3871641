"""A traced graph whose sizes are open, at the sizes of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from .refusals import Untraceable

_OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Sizes:
    """The numbers that the symbols of one capture stand for in one call.

    `fakes` are those of its placeholders, `given` the call's own arguments. No guard is made of any of this: to make
    a number of a symbol would fix it for all calls.
    """

    def __init__(self, fakes: Sequence[Any], given: Sequence[Any]) -> None:
        self.numbers: dict[Any, Any] = {}
        self.known: dict[Any, Any] = {}
        self.storages: dict[int, Any] = {}
        for fake, actual in zip(fakes, given):
            if isinstance(fake, torch.Tensor):
                for size, number in zip((*fake.shape, *fake.stride()), (*actual.shape, *actual.stride())):
                    self._learn(size, number)
            else:
                self._learn(fake, actual)

    def _learn(self, size: Any, number: Any) -> None:
        if isinstance(size, _OPEN) and size.node.expr.is_Symbol:
            self.numbers.setdefault(size.node.expr, sympy.sympify(number))

    def number(self, size: Any) -> Any:
        """A size as a plain number; Untraceable where it depends on the values in a tensor."""
        if not isinstance(size, _OPEN):
            return size
        expression = size.node.expr
        if expression not in self.known:
            found = expression.xreplace(self.numbers)
            if not found.is_number and found not in (sympy.true, sympy.false):
                found = size.node.shape_env.replace(expression).xreplace(self.numbers)
            if not found.is_number and found not in (sympy.true, sympy.false):
                raise Untraceable(f"the size {expression} depends on the values in a tensor")
            self.known[expression] = _plain(size, found)
        return self.known[expression]

    def at(self, value: Any) -> Any:
        """A fake result with plain sizes, tensors that share memory still sharing it."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.at, value))
        if isinstance(value, _OPEN):
            return self.number(value)
        return self._tensor(value) if is_open(value) else value

    def _tensor(self, fake: torch.Tensor) -> torch.Tensor:
        shape = [self.number(size) for size in fake.shape]
        strides = [self.number(step) for step in fake.stride()]
        offset = self.number(fake.storage_offset())
        memory = fake.untyped_storage()._cdata
        if memory not in self.storages:
            # Of a view of something larger no symbol of the call says how large: it grows with what is seen of it.
            self.storages[memory] = torch.UntypedStorage(0, device="meta")
        made = torch.empty(0, dtype=fake.dtype, device="meta")
        return made.set_(self.storages[memory], offset, shape, strides)

    def settle(self, values: Mapping[fx.Node, Any]) -> None:
        """Give each of these nodes the result that it has at these sizes, from those it was traced with."""
        for node, value in values.items():
            node.meta["val"] = self.at(value)


def is_open(value: Any) -> bool:
    """True if a result has a size that is no plain number."""
    if isinstance(value, (tuple, list)):
        return any(map(is_open, value))
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return False
        return any(
            isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride(), value.storage_offset())
        )
    return isinstance(value, _OPEN)


def _plain(size: Any, found: Any) -> Any:
    if isinstance(size, torch.SymBool):
        return bool(found)
    return int(found) if isinstance(size, torch.SymInt) else float(found)
