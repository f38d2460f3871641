"""Autocast state by device type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .torch_private import anywhere, pytree

__all__ = ["anywhere", "enabled", "off", "on"]


def enabled(kind: str) -> bool:
    """Return True if autocast is on in this thread for devices of type `kind`."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def on(batch: Any, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast to `dtype` for the device type of the first tensor in a batch; without effect for None."""
    if dtype is None:
        return contextlib.nullcontext()
    tensors = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
    return torch.autocast(next((tensor.device.type for tensor in tensors), "cpu"), dtype)


@contextlib.contextmanager
def off(kinds: Iterable[str]) -> Iterator[None]:
    """Within the block, disable autocast for these device types."""
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
