"""Kernels of several tasks, compiled by other libraries. `STACKS` lists these, the fastest to compile first; `named`
also finds the backends of `torch.compile`."""

from __future__ import annotations

from . import compile_backend, cuda_graphs, inductor, onnx_runtime, open_vino
from .stack import Compilation, Kernel, Refusal, Stack

STACKS: tuple[Stack, ...] = (
    cuda_graphs.STACK,
    onnx_runtime.STACK,
    open_vino.STACK,
    inductor.FROZEN,
    inductor.PLAIN,
)


def named(name: str) -> Stack | None:
    """Return the stack of this name, or the backend of `torch.compile`; None if there is neither."""
    return next((stack for stack in STACKS if stack.name == name), None) or compile_backend.named(name)


__all__ = ["STACKS", "Compilation", "Kernel", "Refusal", "Stack", "named"]
