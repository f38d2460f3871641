"""Where a model keeps its tensors, so that state is read from there at each call and never copied into a
graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .refusals import Untraceable


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a model: its state_dict path and the dict entry that holds it."""

    path: str
    owner: dict[str, Any]
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        """The live tensor."""
        return self.owner[self.key]


def slots(module: nn.Module) -> Iterator[Slot]:
    """Every parameter and buffer, those that share a tensor included, in the order of `state_dict`."""
    for path, child in module.named_modules(remove_duplicate=False):
        dot = f"{path}." if path else ""
        for owner in (child._parameters, child._buffers):
            for key, tensor in owner.items():
                if tensor is not None:
                    yield Slot(dot + key, owner, key)


def find(module: nn.Module, path: str) -> Slot | None:
    """The slot of a dotted path; plain tensor attributes count too. None when there is no such tensor."""
    *parents, key = path.split(".")
    owner: Any = module
    for name in parents:
        owner = getattr(owner, name, None)
    if not isinstance(owner, nn.Module):
        return None
    for entries in (owner._parameters, owner._buffers, vars(owner)):
        if isinstance(entries.get(key), torch.Tensor):
            return Slot(path, entries, key)
    return None


def tensors_of(module: nn.Module) -> list[torch.Tensor]:
    """Every tensor that the modules hold, plain attributes included, each once."""
    found: dict[int, torch.Tensor] = {}
    for child in module.modules():
        for owner in (child._parameters, child._buffers, vars(child)):
            found.update({id(item): item for item in owner.values() if isinstance(item, torch.Tensor)})
    return list(found.values())


class Before:
    """Tensors as they are now, to tell later which were changed in place.

    Version counters alone do not tell: batch_norm writes its running statistics without counting.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.held = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]

    def changed(self) -> list[torch.Tensor]:
        """Those that are not as they were."""
        return [
            tensor
            for tensor, version, copy in self.held
            if tensor._version != version or not torch.allclose(tensor, copy, 0, 0, equal_nan=True)
        ]


def store(held: list[tuple[Slot, torch.Tensor]]) -> None:
    """Turn each assignment of a new tensor to a slot into a write to the tensor it held, which tracing can
    follow.

    Raises Untraceable where the new tensor is of another shape or dtype, or none.
    """
    now: list[tuple[Slot, torch.Tensor, Any]] = [
        (slot, tensor, slot.owner.get(slot.key)) for slot, tensor in held
    ]
    new = [(slot, tensor, item) for slot, tensor, item in now if item is not tensor]
    for slot, tensor, item in new:
        if not isinstance(item, torch.Tensor) or item.shape != tensor.shape or item.dtype != tensor.dtype:
            raise Untraceable(
                f"forward replaces {slot.path}, of {list(tensor.shape)} {tensor.dtype}, by what is "
                "not alike; keep the shape and dtype of a buffer, or keep it outside the model"
            )
    with torch.no_grad():
        # All are read before any is written: two buffers may have changed places.
        for (slot, tensor, _), copy in zip(new, [item.clone() for _, _, item in new]):
            tensor.copy_(copy)
            slot.owner[slot.key] = tensor
