"""Calls of an `autograd.Function` while a call is recorded, each as a node of the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from .asked import FUNCTION, Applied, Asked
from .locations import caller
from .private import mapping
from .signature import take_apart


def reader(asked: Asked) -> Callable[[type, str], Any]:
    """A `__getattribute__` for the type of all `autograd.Function`s: what it has `apply` do in this thread is recorded.

    `apply` itself is beyond reach: it is bound to C since torch 2.14, and a model may hold it bound (`swish =
    Swish.apply`). In every version it reads `setup_context` of its class, to know whether `forward` is given a
    context; then `forward`, which it calls; then `setup_context` once more. A `forward` that is read in no such
    turn is the one the user wrote, and so is all that is read while a recorded function runs.
    """
    mine = threading.get_ident()
    applied: type | None = None
    recorded: type | None = None
    running = False

    def read(cls: type, key: str) -> Any:
        nonlocal applied, recorded
        plain = type.__getattribute__(cls, key)
        if key not in ("forward", "setup_context") or running or threading.get_ident() != mine:
            return plain
        if mapping() or not _of_the_user(cls):
            return plain
        if key == "forward":
            return (lambda *args, **kwargs: forward(cls, args, kwargs)) if applied is cls else plain
        applied, recorded = (None, None) if recorded is cls else (cls, None)
        return _no_context

    def forward(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal applied, recorded, running
        applied = None
        if cls is CheckpointFunction:
            raise CaptureError(
                f"checkpoint{caller()} runs forward without gradient, which cannot be traced; give it "
                "use_reentrant=False"
            )
        key = f"{cls.__qualname__}.{len(asked.functions)}"
        made = asked.functions[key] = Applied(cls, take_apart(args, kwargs))
        running = True
        try:
            found = made.rebuild(FUNCTION(key, made.arguments.tensors))
        finally:
            running = False
        recorded = cls
        return found

    return read


def _no_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Stands in for `setup_context`: the node of the record has its own."""


def _of_the_user(cls: type) -> bool:
    module = cls.__module__
    if module == "torch.utils.checkpoint":
        return cls is CheckpointFunction
    return not (module.startswith("torch._") or module == "torch.autograd.function")
