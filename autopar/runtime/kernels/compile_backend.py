"""Backends of `torch.compile`, by name: each compiles the graph of a piece as if Dynamo had captured it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .inductor import keeps
from .stack import Compilation, Stack


def named(name: str) -> Stack | None:
    """Return the stack of a backend that is registered with torch, autopar's own excluded; None if there is none."""
    import torch._dynamo

    if name == "autopar" or name not in torch._dynamo.list_backends(exclude_tags=()):
        return None
    return Stack(name, False, lambda: "", keeps, partial(load, name), devices=None, traces=True)


def load(name: str, work: Compilation) -> Callable[..., Any]:
    """Compile a piece, with its weights as arguments. Raises the backend's errors."""
    import torch._dynamo

    backend = torch._dynamo.lookup_backend(name)
    with torch.no_grad():
        call: Callable[..., Any] = backend(work.module, list(work.examples))
    return call
