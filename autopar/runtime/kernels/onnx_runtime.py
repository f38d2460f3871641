"""ONNX Runtime: a piece and its weights become a model by `torch.onnx.export`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import fx

from ...ir.graph import Graph, Task
from .edge_cases import exact, in_range
from .library import Call, Refusal, keeps_numpy
from .model_files import stored
from .piece_module import exported

LARGEST = 2**31 - 2**26
"""Limit on the bytes of weights, which are in one file with the graph."""

SPIN_US = 100
"""Microseconds for which an idle helper thread spins before it sleeps, more than a call takes on its way to the next
kernel (docs/kernels.md)."""

LAYERS = ("aten._native_multi_head_attention", "aten._transformer_encoder_layer_fwd")
"""Whole layers that are one operator of PyTorch without gradients, of which other libraries have no form."""


def missing() -> str:
    """Return the reason why ONNX Runtime cannot be used, such as missing packages; "" if it can."""
    lacks = [name for name in ("onnxruntime", "onnx", "onnxscript") if not find_spec(name)]
    return f"not installed: {', '.join(lacks)} (pip install 'autopar[onnxruntime]')" if lacks else ""


def keeps(task: Task, graph: Graph) -> bool:
    """Return True for ATen operators, and composites of these, on NumPy's dtypes, except layers that ONNX lacks."""
    return not task.target.startswith(LAYERS) and keeps_numpy(task, graph)


def model(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bytes:
    """Return a piece as an ONNX file, exported unless it is stored on disk. Raises Refusal if it cannot be exported or
    is too large for one file, and the libraries' errors."""
    import onnxruntime

    return stored("onnxruntime", onnxruntime.__version__, module, inputs, lambda: _model(module, inputs))


def store(data: bytes, path: str) -> None:
    """Write the `model` of a piece with its weights in a file of their own, which sessions map into memory."""
    import onnx

    model, weights = onnx.load_from_string(data), f"{os.path.basename(path)}.weights"
    onnx.save_model(model, path, save_as_external_data=True, location=weights)


def load(data: bytes | str, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Call:
    """Load the `model` of a piece, or the files of `store`, in a session of its own. Raises the library's errors."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 3
    # Releases before 1.26 do not know it, and let idle helper threads spin for up to 50 ms, on cores that others need.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    # The exporter drops inputs that a piece does not use.
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    inputs_at = [(each.name, names.index(each.name)) for each in session.get_inputs()]
    results = [each.name for each in session.get_outputs()]
    # `session.run` also looks up the names of inputs and outputs, which takes a seventh of a short call.
    run = getattr(session, "_sess", session).run

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feeds = {name: tensors[at].numpy(force=True) for name, at in inputs_at}
        return [torch.from_numpy(array) for array in run(results, feeds, None)]

    # ONNX Runtime counts negative ids from the end.
    return in_range(call, module, inputs)


def _model(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bytes:
    """Return a piece as an ONNX file."""
    if sum(tensor.nbytes for tensor in module.buffers()) > LARGEST:
        raise Refusal("its weights are larger than the 2 GiB of an ONNX file")
    # It logs each fold that it leaves out.
    scripts = logging.getLogger("onnxscript")
    level = scripts.level
    scripts.setLevel(logging.ERROR)
    try:
        program = _converted(module, inputs, decompose=False)
    except torch.onnx.OnnxExporterError:
        try:
            program = _converted(module, inputs, decompose=True)
        except torch.onnx.OnnxExporterError as error:
            # Its own text begins with advice to developers of the exporter.
            raise Refusal(f"{_first(error)}\n{error}") from error
    finally:
        scripts.setLevel(level)
    data: bytes = program.model_proto.SerializeToString()
    return data


def _converted(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], decompose: bool
) -> torch.onnx.ONNXProgram:
    """Return a piece as a graph of ONNX, by way of decomposed operators if it has any that the exporter lists, or
    `decompose`. Raises the exporter's errors."""
    graph = exported(exact(module), inputs)

    def decomposed(table: dict[Any, Any]) -> torch.export.ExportedProgram:
        if any(node.target in table for node in graph.graph.nodes):
            return type(graph).run_decompositions(graph, table)
        return graph

    if not decompose:
        # The exporter calls this method, which traces the graph twice more even if nothing in it changes.
        vars(graph)["run_decompositions"] = decomposed
    program = torch.onnx.export(graph, tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    return program


def _first(error: BaseException) -> BaseException:
    """Return the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
