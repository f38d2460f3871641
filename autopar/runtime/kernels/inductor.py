"""PyTorch's own compiler, run ahead of time: a piece is already a graph of ATen calls and needs no guards.

Kernels for a CPU are called from C++. Kernels for a GPU are called from Python, because they then took 17 to
19 s to build instead of more than a minute. They are recorded as a CUDA graph if that is faster.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...costs.calibrate import threads as limited
from ...ir.graph import Graph, Task
from ...ops.composites import body
from .cuda_graphs import faster
from .stack import Compilation, Stack, exported

_UNROLLED = ("aten.lstm", "aten.gru", "aten.rnn", "aten._thnn", "aten.quantized", "autopar.")
"""Operators that it unrolls step by step, or that are opaque to it."""
_PACKAGE, _ARTIFACT = "piece.pt2", "piece.bin"
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
        if work.device.type != "cpu":
            made = torch._inductor.standalone_compile(
                work.module, [*work.examples], dynamic_shapes="from_example_inputs"
            )
            made.save(path=str(work.folder / _ARTIFACT))
            return
        if work.axes and not all(tensor.is_contiguous() for tensor in work.examples):
            raise ValueError(
                "of inputs that are not contiguous it knows the strides of one set of sizes alone"
            )
        graph = exported(work, work.module)
        torch._inductor.aoti_compile_and_package(graph, package_path=str(work.folder / _PACKAGE))


def load(work: Compilation) -> Callable[..., Any]:
    """Return the kernel of a piece."""
    import torch._inductor

    module, strides, fewer = work.module, [tensor.stride() for tensor in work.examples], False
    if work.device.type == "cpu":
        # One runner, with buffers for one call at a time, is enough: a lane has one thread.
        made: Any = torch._inductor.aoti_load_package(str(work.folder / _PACKAGE))
        run, fewer = made.loader.boxed_run, work.lanes == 1 and work.threads != torch.get_num_threads()
    else:
        artifact = torch._inductor.CompiledArtifact.load(path=str(work.folder / _ARTIFACT))
        run = _unpacked(artifact)

    def call(*tensors: torch.Tensor) -> Any:
        # The kernel reads memory in the layout of the examples.
        if work.axes:
            if not all(tensor.is_contiguous() for tensor in tensors):
                return module(*tensors)
        elif [tensor.stride() for tensor in tensors] != strides:
            return module(*tensors)
        if fewer:
            # PyTorch's own kernels within it use as many threads as this thread has set.
            with limited(work.threads):
                return run([*tensors])
        return run([*tensors])

    return call if work.device.type == "cpu" else faster(call, work)


def _unpacked(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda arguments: function(*arguments)


FROZEN = Stack("inductor frozen", True, missing, keeps, load, partial(compile, True), open=True)
"""Weights are folded into the kernel and packed for it."""
PLAIN = Stack(
    "inductor", False, missing, keeps, load, partial(compile, False), frozenset({"cpu", "cuda"}), open=True
)
"""Weights are arguments of the kernel."""
