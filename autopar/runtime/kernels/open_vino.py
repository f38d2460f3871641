"""OpenVINO: a piece and its weights become a model by `torch.export`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ...ir.graph import Graph, Task
from .differences import EXACT
from .edge_cases import exact, in_range
from .library import Call, Refusal, keeps_numpy
from .model_files import folder, stored
from .onnx_runtime import LAYERS
from .piece_module import exported

_END = b"\0"
"""A byte that no graph in XML has: it separates the graph from its weights in one file."""


def missing() -> str:
    """Return the reason why OpenVINO cannot be used, such as a missing extra; "" if it can."""
    return "" if find_spec("openvino") else "not installed: openvino (pip install 'autopar[openvino]')"


def keeps(task: Task, graph: Graph) -> bool:
    """Return True for ATen operators, and composites of these, on NumPy's dtypes, except layers that OpenVINO lacks, or
    that its converter unrolls step by step."""
    return not task.target.startswith(("aten.lstm", "aten.gru", "aten.rnn", *LAYERS)) and keeps_numpy(
        task, graph
    )


def model(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bytes:
    """Return a piece as a model of OpenVINO, converted unless it is stored on disk. Raises Refusal with the operators
    that read larger integers than it computes with, and the library's errors."""
    import openvino

    return stored("openvino", openvino.__version__, module, inputs, lambda: _saved(_model(module, inputs)))


def store(data: bytes, path: str) -> None:
    """Write the `model` of a piece as the two files that OpenVINO maps."""
    graph, _, weights = data.partition(_END)
    Path(f"{path}.xml").write_bytes(graph)
    Path(f"{path}.bin").write_bytes(weights or _END)


def load(data: bytes | str, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Call:
    """Compile the `model` of a piece, or the files of `store`, for this processor. Raises the library's errors."""
    import openvino

    settings = {
        # The default is bfloat16 on CPUs that have units for it.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        # With pinning, the models of all lanes would run on the first core.
        "ENABLE_CPU_PINNING": False,
    }
    core = openvino.Core()
    if isinstance(data, str):
        network = core.read_model(f"{data}.xml")
    else:
        graph, _, weights = data.partition(_END)
        # OpenVINO takes no empty file.
        network = core.read_model(graph, weights or _END)
    # The thread that compiles gets a stack for signals that is too small for Python's handlers: not this thread.
    with ThreadPoolExecutor(1) as other:
        compiled = other.submit(core.compile_model, network, "CPU", settings).result()
    request, count = compiled.create_infer_request(), len(compiled.outputs)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feeds = {at: tensor.numpy(force=True) for at, tensor in enumerate(tensors)}
        results = request.infer(feeds, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(results[at]) for at in range(count)]

    # OpenVINO computes integers as int32 or float32, and gives zeros for an id that its table lacks.
    return in_range(call, module, inputs, narrow=True)


def _saved(model: Any) -> bytes:
    """Return the two files of a model: its graph, `_END`, its weights. Raises OSError if the cache cannot be written.

    A model as it is converted is compiled wrongly if it has embedding bags.
    """
    import openvino

    path = folder() / f"openvino.{os.getpid()}.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    files = path, path.with_suffix(".bin")
    try:
        openvino.save_model(model, path, compress_to_fp16=False)
        return _END.join(file.read_bytes() for file in files)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _model(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
    """Return a piece as a model of OpenVINO."""
    import openvino

    for node in module.graph.find_nodes(op="get_attr"):
        weight = getattr(module, str(node.target))
        if weight.dtype not in (torch.int32, torch.int64) or not weight.numel():
            continue
        if max(-int(weight.min()), int(weight.max())) > EXACT:
            readers = ", ".join(str(user.target) for user in node.users)
            raise Refusal(f"a weight has integers above {EXACT}, which it rounds, in {readers}")
    # A conversion that fails sets up the root logger for a command of OpenVINO.
    root = logging.getLogger()
    level, handlers, filters = root.level, [*root.handlers], [*root.filters]
    try:
        model = openvino.convert_model(exported(_distinct(exact(module)), inputs))
    finally:
        root.setLevel(level)
        root.handlers[:], root.filters[:] = handlers, filters
    axes = module.meta.get("axes") or [{}] * len(inputs)
    shapes = [
        [-1 if axis in varying else size for axis, size in enumerate(tensor.shape)]
        for tensor, varying in zip(inputs, axes)
    ]
    model.reshape({each: openvino.PartialShape(shape) for each, shape in zip(model.inputs, shapes)})
    return model


def _distinct(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module, changed so that no two results are one value to the converter, which fails on them: it leaves
    out copies, and dropout, which does nothing here."""
    (end,) = module.graph.find_nodes(op="output")
    sources, results = set(), []
    for node in end.args[0]:
        source = node
        while getattr(source.target, "overloadpacket", None) in _SAME:
            source = source.args[0]
        if source in sources:
            with module.graph.inserting_before(end):
                longer = module.graph.call_function(_aten.unsqueeze.default, (node, 0))
                node = module.graph.call_function(_aten.squeeze.dim, (longer, 0))
        sources.add(source)
        results.append(node)
    end.args = (tuple(results),)
    module.recompile()
    return module


_aten = torch.ops.aten
_SAME = frozenset({
    _aten.alias, _aten.clone, _aten.contiguous, _aten.detach, _aten.dropout, _aten.lift_fresh_copy, _aten.to,
    _aten._to_copy,
})  # fmt: skip
"""Operators whose result may be their first argument to the converter."""
