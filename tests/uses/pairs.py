"""A model and its compiled form side by side, over two devices that the tasks take turns on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from machines import TWO, turns
from torch import nn
from torch.utils import _pytree as pytree

import autopar


def compiled(model: Any, **options: Any) -> Any:
    """The model over two devices that its modules take turns on."""
    chosen: dict[str, Any] = {"policy": "round_robin", "split": None}
    if isinstance(model, nn.Module):
        chosen["pins"] = turns(model)
    return autopar.compile(model, TWO, **{**chosen, **options})


def twins(make: Callable[[], nn.Module], **options: Any) -> tuple[nn.Module, Any]:
    """Two equal models, one as it is and one compiled."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    return models[0], compiled(models[1], **options)


def alike(first: Any, second: Any) -> bool:
    """True if two results have the same structure, and tensors in it differ by rounding at most, and by
    nothing in shape, dtype and `requires_grad`."""
    ones, form = pytree.tree_flatten(first)
    others, other_form = pytree.tree_flatten(second)
    return form == other_form and all(map(_alike, ones, others))


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    same = (one.shape, one.dtype, one.requires_grad) == (other.shape, other.dtype, other.requires_grad)
    return same and torch.allclose(one, other, atol=1e-5, rtol=1e-4, equal_nan=True)


def gradients(model: nn.Module, call: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """What the backward of a call leaves in the model's parameters, which are left without."""
    model.zero_grad()
    call().backward()
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found
