"""Calls of a compiled model, and whether they go by way of Dynamo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import autopar
from autopar.engine.compiled import Compiled


def warm(kernels: str, model: nn.Module, *args: Any) -> Compiled:
    """A compiled model after a few calls."""
    fast = autopar.compile(model, ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    fast(*args)
    fast.wait()
    for _ in range(6):
        torch.testing.assert_close(fast(*args), model(*args))
    return fast


@contextmanager
def by_dynamo(fast: Compiled) -> Iterator[list[int]]:
    """Within the block, a list with an item for each call that goes by way of Dynamo."""
    placement, run, found = fast._placement, fast._placement.call, list[int]()

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(1)
        return run(*args, **kwargs)

    placement.call = counted  # type: ignore[assignment]
    try:
        yield found
    finally:
        placement.call = run


def long_calls(fast: Compiled, *args: Any, **kwargs: Any) -> int:
    """How many of two calls, which must be right, go by way of Dynamo."""
    with by_dynamo(fast) as found:
        for _ in range(2):
            torch.testing.assert_close(fast(*args, **kwargs), fast.module(*args, **kwargs))
    return len(found)
