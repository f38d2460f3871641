"""Calls of an `autograd.Function` while a call is recorded, each as a node of the record."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from ..errors import CaptureError
from .asked import FUNCTION, Applied, Asked
from .locations import caller
from .private import has_context, mapping
from .signature import take_apart


def reader(asked: Asked) -> Callable[[type, str], Any]:
    """A `__getattribute__` for the type of all `autograd.Function`s: what `apply` calls in this thread is recorded.

    `apply` itself is beyond reach: it is a method of C since torch 2.14, and a model may hold it bound (`swish =
    Swish.apply`). In every version it reads `setup_context` of its class, which tells whether `forward` is given a
    context; then `forward`, which it calls; then `setup_context`, if there is one, to call it. A `forward` that is
    read in no such turn is the one the user wrote, and so is all that is read while a recorded function runs.
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
            return _Forward(plain, functools.partial(record, cls)) if applied is cls else plain
        if recorded is cls:
            recorded = None
            return _no_context
        applied = cls
        return plain

    def record(cls: type, *args: Any) -> Any:
        nonlocal applied, recorded, running
        applied = None
        if cls is CheckpointFunction:
            raise CaptureError(
                f"checkpoint{caller()} runs forward without gradient, which cannot be traced; give it "
                "use_reentrant=False"
            )
        key = f"{cls.__qualname__}.{len(asked.functions)}"
        running = True
        try:
            own = has_context(cls)
            made = asked.functions[key] = Applied(cls, take_apart(args if own else args[1:], {}))
            found = made.rebuild(FUNCTION(key, made.arguments.tensors))
        finally:
            running = False
        recorded = cls if own else None
        return found

    return read


class _Forward:
    """Stands in for a `forward` that `apply` calls, which reads of it how it names its arguments."""

    def __init__(self, plain: Any, record: Callable[..., Any]) -> None:
        functools.update_wrapper(self, plain)
        self._record = record

    def __call__(self, *args: Any) -> Any:
        return self._record(*args)

    def __getattr__(self, key: str) -> Any:
        return getattr(self.__wrapped__, key)


def _no_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Stands in for `setup_context`: what the node of the record stands for has its own."""


def _of_the_user(cls: type) -> bool:
    module = cls.__module__
    if module == "torch.utils.checkpoint":
        return cls is CheckpointFunction
    return not (module.startswith("torch._") or module == "torch.autograd.function")
