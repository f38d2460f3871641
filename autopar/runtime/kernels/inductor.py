"""PyTorch's own compiler, ahead of time: a piece is already a graph of ATen calls, so that no guard is needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...costs.calibrate import threads as limited
from ...ir.graph import Graph, Task
from ...ops.composites import body
from .stack import Compilation, Stack

_UNROLLED = ("aten.lstm", "aten.gru", "aten.rnn", "aten._thnn", "aten.quantized", "autopar.")
"""Operators that it unrolls step by step, or that are opaque to it."""
_SEEN = ("autopar.join", "autopar.part", "autopar.sum", "autopar.layer_norm", "autopar.rms_norm")


def missing() -> str:
    """Return the reason why it cannot be used, such as no C++ compiler; "" if it can."""
    from torch._inductor import config

    named = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else (config.cpp.cxx,)
    found = any(each and shutil.which(each) for each in (*named, "g++", "clang++"))
    return "" if found else "no C++ compiler is on PATH; install g++"


def keeps(task: Task, _: Graph) -> bool:
    """Return True for all but recurrent layers and autopar's composites without a body."""
    seen = task.target.startswith(_SEEN) or not task.target.startswith(_UNROLLED)
    return seen or body(task) is not None


def compile(frozen: bool, work: Compilation) -> None:
    """Compile a piece, with its weights folded if `frozen`. Raises inductor's errors."""
    import torch._inductor
    from torch._inductor import config

    settings = {"freezing": frozen, "cpp.threads": work.threads, "fallback_random": True}
    with torch.no_grad(), config.patch(settings):
        exported = torch.export.export(work.module, tuple(work.examples))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(work.folder / "piece.pt2"))


def load(work: Compilation) -> Callable[..., Any]:
    """Return the kernel of a piece."""
    import torch._inductor

    # One call at a time and no more buffers than that takes: a lane has one thread.
    index = -1 if work.device.index is None else work.device.index
    made: Any = torch._inductor.aoti_load_package(str(work.folder / "piece.pt2"), device_index=index)
    run, module, strides = made.loader.boxed_run, work.module, [t.stride() for t in work.examples]
    fewer = work.device.type == "cpu" and work.lanes == 1 and work.threads != torch.get_num_threads()

    def call(*tensors: torch.Tensor) -> Any:
        if [tensor.stride() for tensor in tensors] != strides:
            # It reads memory as the examples had it, and does not look.
            return module(*tensors)
        if fewer:
            # Kernels that are PyTorch's own take the number of the thread.
            with limited(work.threads):
                return run([*tensors])
        return run([*tensors])

    return call


_DEVICES = frozenset({"cpu", "cuda"})

FROZEN = Stack("inductor frozen", True, missing, keeps, load, partial(compile, True), _DEVICES)
"""Weights are folded into the kernel and packed for it."""
PLAIN = Stack("inductor", False, missing, keeps, load, partial(compile, False), _DEVICES)
"""Weights are arguments of the kernel."""
