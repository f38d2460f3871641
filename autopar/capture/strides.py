"""Strides of tensors: the same values laid out otherwise in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Strides = tuple[int, ...]
GAPS = 1 << 20
"""Bytes of gaps that are made again, or as many as the elements take where that is more: what eager shows of a large
tensor as a view, a copy has without the rest of it."""


def strides_of(item: Any) -> Strides | None:
    """The strides of a tensor; None for a value that has none."""
    strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
    return tuple(item.stride()) if strided else None


def fitting(strides: Sequence[Strides | None], shapes: Sequence[Sequence[int]]) -> list[Strides | None]:
    """The strides that have as many axes as the shapes, None for others: torch 2.11 traces the last states of an LSTM
    with an axis too many."""
    return [own if own and len(own) == len(shape) else None for own, shape in zip(strides, shapes)]


def alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """True if a tensor has these strides wherever strides say anything: along axes of more than one element."""
    found = tensor.stride()
    if found == strides or tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, found, strides))


def laid(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with these strides, itself where it has them. Axes of stride 0 are expanded; in the place of large
    gaps (`GAPS`) the copy is dense, its axes in the same order."""
    if alike(tensor, strides):
        return tensor
    own = tensor
    for axis, step in enumerate(strides):
        if step == 0:
            own = own.narrow(axis, 0, 1)
    span = 1 + sum((size - 1) * step for size, step in zip(own.shape, strides))
    made = torch.empty_strided(own.shape, strides, dtype=own.dtype, device="meta")
    if (span - own.numel()) * own.element_size() > max(GAPS, own.nbytes):
        made = torch.empty_like(made)
    made = torch.empty_strided(own.shape, made.stride(), dtype=own.dtype, device=own.device)
    return made.copy_(own).expand(tensor.shape)


def settle(values: list[Any], strides: Sequence[Strides | None], kind: str) -> bool:
    """Give each value on a device of this kind its strides, in place of the list; whether any had others. None says
    nothing of a value, and kernels of another kind lay out their results as they do."""
    changed = False
    for index, wanted in enumerate(strides):
        value = values[index]
        if wanted is not None and value.stride() != wanted and value.device.type == kind:
            values[index] = laid(value, wanted)
            changed = changed or values[index] is not value
    return changed
