"""What decides whether a plan made before serves a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import nn

from .capture.functions import reachable
from .capture.signature import Arguments

KEPT = 8
"""Signatures whose plans are kept; the least recently used goes first."""

_PLAIN = frozenset((bool, int, float, str, complex, bytes, type(None), torch.dtype))


def call_key(modules: Sequence[nn.Module], arguments: Arguments, kinds: Sequence[str]) -> tuple[Any, ...]:
    """Equal for two calls that one captured graph serves: the arguments, all modules of the model and their hooks,
    what needs a gradient, autocast on the device types in `kinds`; last, plain attributes of the modules (flags, sizes,
    train or eval), which are constants of a captured graph."""
    plain = tuple([v for m in modules for v in m.__dict__.values() if v.__class__ in _PLAIN])
    grad = torch.is_grad_enabled()
    needed: list[bool] = []
    if grad:
        needed = [tensor.requires_grad for tensor in arguments.tensors]
        needed += [p.requires_grad for m in modules for p in m._parameters.values() if p is not None]
    cast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
    ids = tuple(map(id, modules))
    hooks = [key for m in modules for found in (m._forward_pre_hooks, m._forward_hooks) for key in found]
    return arguments.key, (*ids, *hooks), grad, tuple(needed), tuple(cast), (plain, tuple(map(type, plain)))


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
