"""The caller's thread-local torch state, and its transfer to a lane's thread.

Autocast's casts are recorded as tasks, so tasks run with autocast off.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..capture import autocast as casting
from ..capture.torch_private import packs_saved


class _Entered(threading.local):
    """Executors whose calls the current thread is in, as the caller or as one of the lanes."""

    stack: tuple[int, ...] = ()


entered = _Entered()

_LOCK = threading.RLock()
_LOCK_ID = id(_LOCK)


@contextlib.contextmanager
def capture_lock(seconds: float = -1.0) -> Iterator[bool]:
    """Hold the process's lock of captures and eager comparison runs, since tracing replaces `nn.Module.__call__` for
    all threads. Yields False, without the lock, if another thread holds it for so many `seconds`.

    Lanes of a call within the block hold it too. Take it before the lock of any model (`capture_lock_and`), or for
    some seconds: code within may call compiled models.
    """
    if holds_capture_lock():
        yield True
        return
    lock = _LOCK
    if not lock.acquire(timeout=seconds):
        yield False
        return
    before = entered.stack
    entered.stack = (*before, _LOCK_ID)
    try:
        yield True
    finally:
        entered.stack = before
        lock.release()


def holds_capture_lock() -> bool:
    """Return True if this thread, or the call that it is part of, is within `capture_lock`."""
    return _LOCK_ID in entered.stack


WAIT_S, PAUSE_S = 0.1, 0.001
"""Longest wait for a model's lock with the capture lock held, and the pause then, in which another thread may hold
it."""


@contextlib.contextmanager
def capture_lock_and(lock: threading.RLock) -> Iterator[None]:
    """Hold the capture lock and the lock of a model.

    Another thread may hold the model's lock in a call, and wait for the capture lock in a task that calls another
    compiled model: this one does not wait for it forever.
    """
    while True:
        with capture_lock():
            if lock.acquire(timeout=WAIT_S):
                try:
                    yield
                finally:
                    lock.release()
                return
        time.sleep(PAUSE_S)


reset_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objects with locks and threads; `forked` resets each in a forked child."""


def _after_fork() -> None:
    # The parent's other threads do not exist here, but may have held locks.
    global _LOCK
    _LOCK = threading.RLock()
    entered.stack = ()
    for each in list(reset_after_fork):
        each.forked()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """Hide the caller's saved-tensor hooks (a checkpoint around the call, say) from tensors saved within the
    block."""
    if not packs_saved():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def enter(stack: contextlib.ExitStack, inference: bool, kinds: tuple[str, ...]) -> None:
    """Prepare the current thread for tasks until `stack` closes: no autograd, inference mode as in the caller, no
    autocast for these device types."""
    if inference:
        stack.enter_context(torch.inference_mode())
    elif torch.is_grad_enabled():
        stack.enter_context(torch.no_grad())
    stack.enter_context(casting.off(kinds))
