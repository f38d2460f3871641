"""Tensors of a call that lie in the same memory, and what must not be changed because of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from .functions import Call
from .refusals import Untraceable
from .states import tensors_of


def memory(tensor: torch.Tensor) -> int:
    """Equal for tensors that lie in the same memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def lent(call: Call) -> bool:
    """True if an argument shares its memory with another one, or with the model's own tensors."""
    own = {memory(tensor) for tensor in tensors_of(call.model)}
    given = [memory(tensor) for tensor in call.arguments.tensors]
    return len(set(given)) < len(given) or not own.isdisjoint(given)


def refuse_changes(
    name: str, tensors: Mapping[str, torch.Tensor], used: Iterable[str], changed: Iterable[str]
) -> None:
    """Untraceable when something is changed in place that shares its memory with something else that is used: in a
    graph these are two values, of which the one does not change with the other.

    `tensors` are those of the call and of the model by value, in a graph that is called `name`.
    """
    at: dict[int, dict[str, None]] = {}
    for value in used:
        if value in tensors:
            at.setdefault(memory(tensors[value]), {})[value] = None
    for target in changed:
        other = next((value for value in at.get(memory(tensors[target]), ()) if value != target), None)
        if other is not None:
            raise Untraceable(
                f"{name} changes {target!r} in place, which shares its memory with {other!r}; pass a copy (clone)"
            )
