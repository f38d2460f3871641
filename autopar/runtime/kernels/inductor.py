"""PyTorch's own compiler, run ahead of time: a piece is already a graph of ATen calls and needs no guards.

Kernels for a CPU are called from C++. Kernels for a GPU are called from Python, because they then took 17 to
19 s to build instead of more than a minute. They are recorded as a CUDA graph if that is faster.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp

from ...costs.calibrate import threads as limited
from ...ir.graph import Graph, Task
from ...ops.composites import body
from .cuda_graphs import faster
from .joined import joined, products, together
from .stack import Compilation, Stack, exported

_UNROLLED = ("aten.lstm", "aten.gru", "aten.rnn", "aten._thnn", "aten.quantized", "autopar.")
"""Operators that it unrolls step by step, or that are opaque to it."""
_PACKAGE, _ARTIFACT, _PACKED = "piece.pt2", "piece.bin", "packed.json"
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
        if frozen and not work.axes and _packs():
            work = _packed(work)
        graph = exported(work, work.module)
        torch._inductor.aoti_compile_and_package(graph, package_path=str(work.folder / _PACKAGE))


def _packs() -> bool:
    """Return True if inductor can let MKL compute products."""
    from torch._inductor import mkldnn_ir

    return torch.backends.mkl.is_available() and hasattr(mkldnn_ir, "MKLPackedLinear")


def _packed(work: Compilation) -> Compilation:
    """Let MKL compute a piece's products with weights in float32, and write the weights' names to `_PACKED`, each
    with the number of rows that it is multiplied with, and whether its shape is (in, out).

    The products read the packed weights as further inputs of the piece, since memory that MKL has packed cannot be
    moved, and so not be stored. Without this, oneDNN computes them when compiled ahead of time. On two cores of an
    Intel Xeon with AVX-512, pieces took 1.0 to 2.8 times as long then (docs/kernels.md).
    """
    from torch._inductor import ir, lowering, mkldnn_ir

    aten, linear = torch.ops.aten, torch.ops.mkl._mkl_linear.default

    def lowered(x: Any, packed: Any, weight: Any, _: None, rows: int) -> Any:
        return ir.TensorBox.create(mkldnn_ir.MKLPackedLinear.create(x, packed, weight, None, rows))

    # Inductor's own lowering requires constants.
    lowering.lowerings[linear] = lowered
    module, examples = fx.GraphModule(work.module, copy.deepcopy(work.module.graph)), [*work.examples]
    graph, parts = module.graph, joined(module, examples, copied=False)
    ShapeProp(module).propagate(*examples)  # type: ignore[no-untyped-call]
    inner = next(node for node in graph.nodes if node.op != "placeholder")
    inputs: dict[tuple[tuple[str, ...], int, bool], list[fx.Node]] = {}
    for each in products(graph):
        given, made = (node.meta["tensor_meta"] for node in (each.x, each.node))
        name = str(each.weight.target)
        weight = getattr(module, name)
        if not weight.is_contiguous() or weight.dtype != torch.float32 or 0 in (*given.shape, *made.shape):
            continue
        key = parts.get(name, (name,)), made.shape[:-1].numel(), each.turned
        if key not in inputs:
            with graph.inserting_before(inner):
                inputs[key] = [graph.placeholder(f"{kind}{len(inputs)}") for kind in ("packed", "weight")]
            # Tracing knows no form of packed memory.
            examples += [torch.empty(1), _shape(weight.t() if each.turned else weight)]
        with graph.inserting_before(each.node):
            flat = graph.call_function(aten.reshape.default, (each.x, [key[1], given.shape[-1]]))
            product = graph.call_function(linear, (flat, *inputs[key], None, key[1]))
            if each.bias is not None:
                product = graph.call_function(aten.add.Tensor, (product, each.bias))
            found = graph.call_function(aten.reshape.default, (product, [*made.shape]))
        found.meta = each.node.meta
        each.node.replace_all_uses_with(found)
        graph.erase_node(each.node)
    (work.folder / _PACKED).write_text(json.dumps([*inputs]))
    graph.eliminate_dead_code()
    return replace(work, module=fx.GraphModule(module, graph), examples=examples)


def _pack(work: Compilation) -> list[torch.Tensor]:
    """Return the further inputs of a piece: each packed weight, and its shape."""
    path, inputs = work.folder / _PACKED, list[torch.Tensor]()
    for names, rows, turned in json.loads(path.read_text()) if path.exists() else ():
        weight = together(work.module, names, turned)
        inputs += [torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), rows), _shape(weight)]
    return inputs


def _shape(weight: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape of a weight, of one row in memory: products read nothing else of the weight than its
    sizes. Inductor would copy one of a single number."""
    return weight.new_zeros(weight.shape[1:]).expand(weight.shape)


def load(work: Compilation) -> Callable[..., Any]:
    """Return the kernel of a piece."""
    import torch._inductor

    module, strides, fewer = work.module, [tensor.stride() for tensor in work.examples], False
    packed = _pack(work)
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
                return run([*tensors, *packed])
        return run([*tensors, *packed])

    return call if work.device.type == "cpu" else faster(call, work)


def _unpacked(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda arguments: function(*arguments)


FROZEN = Stack("inductor frozen", True, missing, keeps, load, partial(compile, True), open=True)
"""Weights are folded into the kernel and packed for it."""
PLAIN = Stack(
    "inductor", False, missing, keeps, load, partial(compile, False), frozenset({"cpu", "cuda"}), open=True
)
"""Weights are arguments of the kernel."""
