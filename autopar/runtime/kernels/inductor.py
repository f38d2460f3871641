"""PyTorch's own compiler, without Dynamo: a piece is a graph of ATen calls already, so no guard is needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from ...costs.calibrate import threads as limited
from ...ir.graph import Graph, Task

_UNROLLED = ("aten.lstm", "aten.gru", "aten.rnn", "aten._thnn", "aten.quantized", "autopar.")
"""Operators that it writes out step by step, or that it cannot see into."""
_OWN = ("autopar.join", "autopar.part", "autopar.sum", "autopar.layer_norm", "autopar.rms_norm")


class Inductor:
    """Inductor with weights as arguments, or `frozen`: folded into the kernel and packed for it."""

    def __init__(self, name: str, frozen: bool) -> None:
        self.name, self.frozen = name, frozen

    def missing(self) -> str:
        """It needs a C++ compiler."""
        from torch._inductor import config

        found = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else (config.cpp.cxx,)
        if any(each and shutil.which(each) for each in (*found, "g++", "clang++")):
            return ""
        return "no C++ compiler is on PATH"

    def keeps(self, task: Task, _: Graph) -> bool:
        """All but recurrent layers and composites of ours."""
        return task.target.startswith(_OWN) or not task.target.startswith(_UNROLLED)

    def build(
        self, module: fx.GraphModule, examples: Sequence[torch.Tensor], threads: int, lanes: int
    ) -> Callable[..., Any]:
        """Compile a piece. Raises whatever inductor raises."""
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx
        from torch._subclasses import FakeTensorMode

        settings = {
            "freezing": self.frozen,
            "cpp.threads": threads,
            "fallback_random": True,
            # Its wrapper in Python holds the interpreter's lock, so that lanes would take turns.
            "cpp_wrapper": lanes > 1,
        }
        with torch.no_grad(), config.patch(settings), tracing(TracingContext(FakeTensorMode())):
            made = cast(Callable[..., Any], compile_fx(module, list(examples)))
        strides = [tensor.stride() for tensor in examples]
        fewer = lanes == 1 and threads != torch.get_num_threads()

        def call(*tensors: torch.Tensor) -> Any:
            if [tensor.stride() for tensor in tensors] != strides:
                # Its kernels are for one layout in memory, and refuse any other.
                return module(*tensors)
            if fewer:
                # Kernels that are PyTorch's own take the number of the thread.
                with limited(threads):
                    return made(*tensors)
            return made(*tensors)

        return call
