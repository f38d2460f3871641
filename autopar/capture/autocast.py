"""Autocast state by device type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


def enabled(kind: str) -> bool:
    """Return True if autocast is on in this thread for devices of type `kind`."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def anywhere() -> bool:
    """Return True if autocast is on in this thread for any device type."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def off(kinds: Iterable[str]) -> Iterator[None]:
    """Within the block, disable autocast for these device types."""
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
