"""What decides whether a plan made before serves a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .capture.signature import Arguments

_PLAIN = frozenset((bool, int, float, str, complex, bytes, type(None), torch.dtype))


def call_key(root: nn.Module, arguments: Arguments, kinds: Sequence[str]) -> tuple[Any, ...]:
    """Equal for two calls that one captured graph serves: the arguments, the modules, what needs a gradient, autocast
    on the device types in `kinds`; last, plain attributes of the modules (flags, sizes, train or eval), which are
    constants of a captured graph."""
    modules = tuple(root.modules())
    plain = tuple([v for m in modules for v in m.__dict__.values() if v.__class__ in _PLAIN])
    grad = torch.is_grad_enabled()
    needed: tuple[bool, ...] = ()
    if grad:
        tensors = (*arguments.tensors, *(p for m in modules for p in m._parameters.values() if p is not None))
        needed = tuple([tensor.requires_grad for tensor in tensors])
    cast = tuple(
        [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
    )
    ids = tuple(map(id, modules))
    return arguments.key, ids, grad, needed, cast, (plain, tuple(map(type, plain)))
