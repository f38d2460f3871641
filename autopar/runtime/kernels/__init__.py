"""Kernels of several tasks, compiled by other libraries. `STACKS` lists the libraries, the fastest to compile
first; `named` also finds the backends of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...capture.torch_private import compiling
from ..thread_state import alone
from . import cuda_graphs, inductor, onnx_runtime, open_vino
from .stack import Compilation, Kernel, Refusal, Stack

PATIENCE_S = 5.0
"""Seconds that a call waits until no other thread traces. Not forever: the call may hold the lock of its model, for
which the other thread may wait."""

STACKS: tuple[Stack, ...] = (
    cuda_graphs.STACK,
    onnx_runtime.STACK,
    open_vino.STACK,
    inductor.FROZEN,
    inductor.PLAIN,
)


def named(name: str) -> Stack | None:
    """Return the stack of this name, or that of a backend registered with `torch.compile`, autopar's own excluded;
    None if there is neither."""
    import torch._dynamo

    for stack in STACKS:
        if stack.name == name:
            return stack
    if name == "autopar" or name not in torch._dynamo.list_backends(exclude_tags=()):
        return None
    load = partial(_by_backend, name)
    return Stack(name, False, lambda: "", inductor.keeps, load, devices=None, traces=True)


def _by_backend(name: str, work: Compilation) -> Callable[..., Any]:
    """Let a backend compile a piece like a graph of Dynamo, with weights as arguments. Raises its errors, and
    Refusal if others trace for too long."""
    import torch._dynamo

    backend = torch._dynamo.lookup_backend(name)
    with _tracing(), torch.no_grad():
        call: Callable[..., Any] = backend(work.module, list(work.examples))
    return call


@contextmanager
def _tracing() -> Iterator[None]:
    """Let no other thread trace within the block: two at once would leave torch's flag of a trace set for good, after
    which each call of a compiled model fails. Raises Refusal if others trace for too long."""
    from torch._dynamo import convert_frame

    captures = convert_frame.compile_lock
    if not captures.acquire(timeout=PATIENCE_S):
        raise Refusal("another thread captures a model", passing=True)
    try:
        with alone(PATIENCE_S) as locked:
            if not locked:
                raise Refusal("another thread captures a model", passing=True)
            with compiling():
                yield
    finally:
        captures.release()


__all__ = ["STACKS", "Compilation", "Kernel", "Refusal", "Stack", "named"]
