"""What makes two calls the same call: the tensors of the arguments apart from everything that is constant
in them.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .private import pytree, registration

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
          torch.memory_format, enum.Enum, type)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call taken apart.

    `tensors` holds each tensor object once; `leaves` has, for each leaf, the index of its tensor or None;
    `constants` the leaves that are no tensors.
    """

    tensors: list[torch.Tensor]
    leaves: tuple[int | None, ...]
    constants: tuple[Any, ...]
    spec: Any

    def join(self, tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Args and kwargs with other tensors in the places of these."""
        constants = iter(self.constants)
        leaves = [next(constants) if index is None else tensors[index] for index in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    @staticmethod
    def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of another call of the same key, in the order of `tensors`."""
        if not kwargs and all(type(item) is torch.Tensor for item in args):
            return list({id(tensor): tensor for tensor in args}.values())
        return take_apart(args, kwargs).tensors

    @property
    def overlaps(self) -> tuple[int, ...]:
        """For each tensor the first that lies in the same memory; empty when no two do."""
        if len(self.tensors) < 2:
            return ()
        memory = [
            tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
            for tensor in self.tensors
        ]
        return () if len(set(memory)) == len(memory) else tuple(memory.index(item) for item in memory)

    @property
    def key(self) -> Hashable:
        """Equal for two calls that one graph can serve: structure, constants, shapes, strides, dtypes,
        devices.
        """
        return (
            self.spec,
            self.leaves,
            self.overlaps,
            tuple(map(_constant_key, self.constants)),
            tuple(map(_tensor_key, self.tensors)),
        )


def take_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Args and kwargs as tensors and constants; CaptureError for a container that cannot be opened."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors: list[torch.Tensor] = []
    index: dict[int, int] = {}
    leaves: list[int | None] = []
    constants: list[Any] = []
    for leaf in flat:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in index:
                index[id(leaf)] = len(tensors)
                tensors.append(leaf)
            leaves.append(index[id(leaf)])
        else:
            leaves.append(None)
            constants.append(leaf)
    return Arguments(tensors, tuple(leaves), tuple(constants), spec)


def refuse_hidden(leaf: Any, what: str) -> None:
    """CaptureError when an object that is no registered container holds tensors."""
    if isinstance(leaf, (*_PLAIN, nn.Module)) or callable(leaf):
        return
    if _holds_tensor(leaf):
        if any(kind.__name__.endswith("Cache") for kind in type(leaf).__mro__):
            raise CaptureError(
                f"{what} is a {type(leaf).__name__}, which training and single calls do not need: set "
                "model.config.use_cache = False, or pass use_cache=False. To have it all the same, register it once, "
                f"after its class: {registration(type(leaf))}"
            )
        raise CaptureError(
            f"{what} is a {type(leaf).__name__}, a container with tensors inside that torch cannot open; "
            f"register it once, after its class: {registration(type(leaf))}"
        )


def _holds_tensor(holder: Any) -> bool:
    """Whether a tensor can be reached from an object by attributes, containers and sets."""
    pending, seen = [holder], {id(holder)}
    while pending and len(seen) < 10_000:
        item = pending.pop()
        inside = (
            list(item) if isinstance(item, (set, frozenset)) else list(getattr(item, "__dict__", {}).values())
        )
        for part in pytree.tree_leaves(inside):
            if isinstance(part, torch.Tensor):
                return True
            if id(part) not in seen and not isinstance(part, _PLAIN) and not callable(part):
                seen.add(id(part))
                pending.append(part)
    return False


def _tensor_key(tensor: torch.Tensor) -> Hashable:
    strides = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return tensor.shape, strides, tensor.dtype, tensor.device


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, float):
        return float, value.hex()
    try:
        hash(value)
    except TypeError:
        raise CaptureError(
            f"an argument of type {type(value).__name__} is neither a tensor nor hashable, so it cannot be "
            "told whether two calls are the same; pass a tensor (torch.as_tensor(array)) or a tuple"
        ) from None
    return type(value), value


def names(function: Any, arguments: Arguments) -> tuple[str, ...]:
    """A path for each tensor as the user would write it: `x`, `mask`, `pair.0`, `cache.key`."""
    args, kwargs = arguments.join([_Mark(index) for index in range(len(arguments.tensors))])
    try:
        signature = inspect.signature(function)
        bound = dict(signature.bind(*args, **kwargs).arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD and name in bound:
                bound.update(bound.pop(name))
    except (TypeError, ValueError):
        bound = {**{f"argument_{index}": value for index, value in enumerate(args)}, **kwargs}
    found: dict[int, str] = {}
    for path, leaf in pytree.tree_flatten_with_path(bound)[0]:
        if isinstance(leaf, _Mark):
            found.setdefault(leaf.index, ".".join(map(_step, path)))
    return tuple(found.get(index, f"tensor_{index}") for index in range(len(arguments.tensors)))


@dataclass(frozen=True, slots=True)
class _Mark:
    index: int


def _step(key: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return re.sub(r"\W", "_", str(getattr(key, field)))
    return re.sub(r"\W", "_", str(key))
