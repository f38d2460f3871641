"""PyTorch's own compiler: a piece is already a graph of ATen calls and needs no guards.

Its cache on disk serves later processes. On a GPU, kernels are recorded as a CUDA graph if that is faster.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...capture.torch_private import backend_named
from ...ir.graph import Graph, Task
from ...ops.composites import body
from .cuda_graphs import faster
from .library import Call
from .piece_module import copied, exported

_UNROLLED = ("aten.lstm", "aten.gru", "aten.rnn", "aten._thnn", "aten.quantized", "autopar.")
"""Operators that inductor unrolls step by step, or that are opaque to it."""
_TRANSPARENT = ("autopar.join", "autopar.part", "autopar.sum", "autopar.layer_norm", "autopar.rms_norm")
"""Composites whose operators inductor compiles."""


def missing() -> str:
    """Return the reason why inductor cannot be used, such as no C++ compiler; "" if it can."""
    from torch._inductor import config

    compilers = config.cpp.cxx if isinstance(config.cpp.cxx, (tuple, list)) else (config.cpp.cxx,)
    if any(each and shutil.which(each) for each in (*compilers, "g++", "clang++")):
        return ""
    return "no C++ compiler is on PATH; install g++"


def keeps(task: Task, _: Graph) -> bool:
    """Return True for all but recurrent layers and autopar's composites without a body."""
    plain = task.target.startswith(_TRANSPARENT) or not task.target.startswith(_UNROLLED)
    return plain or body(task) is not None


def build(module: fx.GraphModule, inputs: Sequence[torch.Tensor], frozen: bool = False) -> Call:
    """Compile a piece, with its weights folded if `frozen`. Calls with another memory layout than the examples', for
    all sizes contiguous, run by the module. Raises ValueError for other examples, and inductor's errors."""
    compiler: Any = backend_named("inductor")
    axes, strides = module.meta.get("axes"), [tensor.stride() for tensor in inputs]
    traced, examples = copied(module), [*inputs]
    if axes:
        if not all(tensor.is_contiguous() for tensor in inputs):
            raise ValueError(
                "of inputs that are not contiguous, it knows the strides for one set of sizes only"
            )
        graph = exported(module, inputs).module(check_guards=False)
        # As a new module, since its cache cannot take the hooks of an exported one.
        traced = fx.GraphModule(graph, graph.graph)
        examples = [node.meta["val"] for node in traced.graph.find_nodes(op="placeholder")]
    # With more threads, inductor would start processes, which stay.
    settings = {"freezing": frozen, "fallback_random": True, "compile_threads": 1}
    kernel = compiler(traced, examples, config_patches=settings)

    def call(*tensors: torch.Tensor) -> Any:
        if axes:
            if not all(tensor.is_contiguous() for tensor in tensors):
                return module.forward(*tensors)
        elif [tensor.stride() for tensor in tensors] != strides:
            return module.forward(*tensors)
        return kernel(*tensors)

    return call if module.meta["device"].type == "cpu" else faster(call, module, inputs)
