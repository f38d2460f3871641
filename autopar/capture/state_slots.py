"""Slots of a model's parameters and buffers, so that state is read from there at each call and never copied into a
graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


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
