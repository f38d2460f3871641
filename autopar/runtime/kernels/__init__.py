"""Kernels of several tasks, compiled by other libraries. `STACKS` lists these, the fastest to compile first."""

from __future__ import annotations

from .inductor import Inductor
from .onnx_runtime import OnnxRuntime
from .open_vino import OpenVino
from .stack import Kernel, Refusal, Stack, Work

STACKS: tuple[Stack, ...] = (
    OnnxRuntime(),
    OpenVino(),
    Inductor("inductor frozen", frozen=True),
    Inductor("inductor", frozen=False),
)

__all__ = ["STACKS", "Kernel", "Refusal", "Stack", "Work"]
