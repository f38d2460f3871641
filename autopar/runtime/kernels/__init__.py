"""Kernels of several tasks, compiled by other libraries. `STACKS` lists the libraries, the fastest to compile
first; `named` also finds the backends of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from . import cuda_graphs, inductor, onnx_runtime, open_vino
from .stack import Compilation, Kernel, Refusal, Stack

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
    """Let a backend compile a piece like a graph of Dynamo, with weights as arguments. Raises its errors."""
    import torch._dynamo

    backend = torch._dynamo.lookup_backend(name)
    with torch.no_grad():
        call: Callable[..., Any] = backend(work.module, list(work.examples))
    return call


__all__ = ["STACKS", "Compilation", "Kernel", "Refusal", "Stack", "named"]
