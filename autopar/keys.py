"""What decides whether a plan made before serves a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import is_
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from . import casting
from .capture.functions import reachable
from .capture.sharing import memory
from .capture.signature import Arguments

_PLAIN = frozenset((bool, int, float, str, complex, bytes, type(None), torch.dtype))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class Parameters:
    """The shapes, strides and dtypes of a model's parameters, read anew once another parameter is in the place of one:
    to read each at every call would take longer. `forget` it after `.data` has been given another shape, which leaves
    the parameter the same object. The strides of what has a memory format (`module.to(memory_format=...)` sets `.data`)
    are looked at in every call.
    """

    def __init__(self) -> None:
        self._seen: tuple[list[torch.Tensor], int] = [], 0
        self._formatted: list[torch.Tensor] = []
        self._strides: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {(): 0}

    def number(self, held: list[torch.Tensor]) -> int:
        """The same for two lists whose parameters are of the same shapes, strides and dtypes."""
        known, number = self._seen
        same = len(known) == len(held) and all(map(is_, known, held))
        if not same or [item.stride() for item in self._formatted] != self._strides:
            forms = tuple(
                [None if is_lazy(item) else (item.shape, _strides(item), item.dtype) for item in held]
            )
            number = self._numbers.setdefault(forms, len(self._numbers))
            self._seen = held, number
            self._formatted = [
                item for item in held if not is_lazy(item) and item.dim() > 3 and _strides(item)
            ]
            self._strides = [item.stride() for item in self._formatted]
        return number

    def forget(self) -> None:
        """Read all of them at the next call."""
        self._seen = [], 0


def _strides(item: torch.Tensor) -> tuple[int, ...] | None:
    return item.stride() if item.layout is torch.strided else None


class Lent:
    """Arguments of a call that lie in the memory of the model's own tensors. Where their memory is, is read anew once
    another tensor is in the place of one, and before any argument is said to lie in it.
    """

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []
        self._places: dict[int, int] = {}

    def places(self, held: list[torch.Tensor], tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """For each argument the first of `held` in whose memory it lies, -1 for none; empty where none does."""
        if len(self._held) != len(held) or not all(map(is_, self._held, held)):
            self._read(held)
        places = self._places
        for tensor in tensors:
            if id(tensor) in places or id(tensor._base) in places or memory(tensor) in places:
                self._read(held)
                places = self._places
                found = [
                    min([places.get(key, len(held)) for key in (id(t), id(t._base), memory(t))])
                    for t in tensors
                ]
                return tuple([-1 if place == len(held) else place for place in found])
        return ()

    def _read(self, held: list[torch.Tensor]) -> None:
        self._held, self._places = held, {}
        for place, tensor in enumerate(held):
            if not is_lazy(tensor):
                for key in (id(tensor), memory(tensor)):
                    self._places.setdefault(key, place)


def call_key(
    modules: Sequence[nn.Module],
    arguments: Arguments,
    kinds: Sequence[str],
    parameters: Parameters,
    lent: Lent,
) -> tuple[Any, ...]:
    """Equal for two calls that one captured graph serves: the arguments, all modules of the model, their hooks and the
    shapes of their parameters, which arguments are the model's own tensors, what needs a gradient, autocast on the
    device types in `kinds`; last, plain attributes of the modules (flags, sizes, train or eval), which are constants
    of a captured graph."""
    attributes = [m.__dict__ for m in modules]
    plain = tuple([v for own in attributes for v in own.values() if v.__class__ in _PLAIN])
    held = [p for own in attributes for p in own["_parameters"].values() if p is not None]
    buffers = [b for own in attributes for b in own["_buffers"].values() if b is not None]
    loose = [v for own in attributes for v in own.values() if v.__class__ is torch.Tensor]
    places = lent.places([*held, *buffers, *loose], arguments.tensors) if arguments.tensors else ()
    grad = torch.is_grad_enabled()
    needed = [tensor.requires_grad for tensor in (*arguments.tensors, *held)] if grad else []
    cast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if casting.enabled(kind)]
    hooks = [key for own in attributes for name in _HOOKS if own[name] for key in own[name]]
    known = (*map(id, modules), *hooks, parameters.number(held))
    return arguments.key, known, grad, tuple(needed), tuple(cast), places, (plain, tuple(map(type, plain)))


Tie: TypeAlias = tuple[dict[str, Any], str, dict[str, Any], str]
"""Two places of a model, each a dict and its key, that have held the same tensor."""


def ties(modules: Sequence[nn.Module]) -> list[Tie]:
    """The places that hold the same parameter or buffer, which a captured graph makes one value for good."""
    first: dict[int, tuple[dict[str, Any], str]] = {}
    found: list[Tie] = []
    for module in modules:
        for owner in (module._parameters, module._buffers):
            for key, tensor in owner.items():
                if tensor is not None and id(tensor) in first:
                    found.append((*first[id(tensor)], owner, key))
                first.setdefault(id(tensor), (owner, key))
    return found


def same(tie: Tie) -> tuple[int, str, int, str] | None:
    """Which two places these are, None where they hold the same tensor no more."""
    (one, key), (other, name) = tie[:2], tie[2:]
    return (id(one), key, id(other), name) if one.get(key) is other.get(name) else None


def visible(function: Any) -> tuple[Any, ...]:
    """The plain values that a function mentions (closure cells, globals, attributes of its `self`, in the helpers it
    calls too), which are constants of a captured graph as well."""
    items = list(reachable(function))
    names: set[str] = set()
    for _, item in [("", function), *items]:
        called = item if hasattr(item, "__code__") else vars(type(item)).get("__call__")
        code = getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            names |= _names(code)
    return tuple([(n, item.__class__, item) for n, item in items if item.__class__ in _PLAIN and n in names])


@cache
def _names(code: CodeType) -> frozenset[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    own = (*code.co_names, *code.co_freevars, *code.co_varnames)
    return frozenset(own).union(*map(_names, inner))
