"""The caller's thread-local torch state and how it reaches a lane's thread.

Graph tasks are operators with autocast's casts already recorded, so they are called with autocast off.
Callables that capture kept as the user wrote them (`Captured.calls`) have no casts recorded: they get the
caller's autocast back.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..capture import autocast as casting
from ..capture.torch_private import packs_saved


class Entered(threading.local):
    """Which executors the current thread is inside of, whether as their caller or as one of their lanes."""

    stack: tuple[int, ...] = ()


entered = Entered()

_LOCKED = threading.RLock()
_ALONE = id(_LOCKED)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One thread of the process at a time, for captures and for eager runs that something is held against: while torch
    traces it replaces `nn.Module.__call__` for all threads. Lanes of a call made inside are inside. To be entered
    before the lock of any one model: what runs inside may call compiled models.
    """
    if _ALONE in entered.stack:
        yield
        return
    with _LOCKED:
        before = entered.stack
        entered.stack = (*before, _ALONE)
        try:
            yield
        finally:
            entered.stack = before


def _after_fork() -> None:
    # The thread that may have held it is not in this process.
    global _LOCKED
    _LOCKED = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Ambient(NamedTuple):
    """Inference mode, default device (None: torch's own), enabled autocasts (device type, dtype) of a caller,
    with what it is inside of.
    """

    inference: bool
    default: torch.device | None
    casts: tuple[tuple[str, torch.dtype], ...]
    cache: bool
    stack: tuple[int, ...]

    def casting(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast as the caller has it."""
        if not self.casts:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        for kind, dtype in self.casts:
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=self.cache))
        return stack


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Keep the caller's hooks for saved tensors (a checkpoint around the call, say) from what is saved inside."""
    if not packs_saved():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def read(kinds: tuple[str, ...], default: bool) -> Ambient:
    """The state of the current thread; `kinds` are the device types whose autocast matters."""
    casts = tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds if casting.enabled(kind))
    device = torch.get_default_device() if default else None
    cache = torch.is_autocast_cache_enabled() if casts else True
    return Ambient(torch.is_inference_mode_enabled(), device, casts, cache, entered.stack)


def enter(stack: contextlib.ExitStack, ambient: Ambient, kinds: tuple[str, ...]) -> None:
    """Make the current thread fit for tasks, until `stack` closes: no autograd, inference mode as the caller,
    no autocast.
    """
    if ambient.inference:
        stack.enter_context(torch.inference_mode())
    elif torch.is_grad_enabled():
        stack.enter_context(torch.no_grad())
    if ambient.default is not None:
        stack.enter_context(ambient.default)
    for kind in kinds:
        if casting.enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))


def as_caller(function: Callable[..., Any], current: list[Ambient]) -> Callable[..., Any]:
    """`function` under the autocast of the caller, who is `current[0]` at the time."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not current[0].casts:
            return function(*args, **kwargs)
        with current[0].casting():
            return function(*args, **kwargs)

    return call
