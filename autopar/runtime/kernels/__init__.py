"""Kernels of several tasks, compiled by other libraries. `STACKS` lists these, the fastest to compile first."""

from __future__ import annotations

from . import inductor, onnx_runtime, open_vino
from .stack import Kernel, Refusal, Stack, Work

STACKS: tuple[Stack, ...] = (onnx_runtime.STACK, open_vino.STACK, inductor.FROZEN, inductor.PLAIN)

__all__ = ["STACKS", "Kernel", "Refusal", "Stack", "Work"]
