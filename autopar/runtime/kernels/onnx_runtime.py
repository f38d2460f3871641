"""ONNX Runtime, by way of `torch.onnx.export`: weights are part of the model it loads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import fx

from ...ir.graph import Graph, Task
from .stack import Refusal

_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class OnnxRuntime:
    """ONNX Runtime's CPU provider, all graph optimizations on."""

    name, frozen = "onnxruntime", True

    def missing(self) -> str:
        """Its packages are an extra."""
        lacks = [name for name in ("onnxruntime", "onnx", "onnxscript") if not find_spec(name)]
        return f"not installed: {', '.join(lacks)} (pip install 'autopar[onnxruntime]')" if lacks else ""

    def keeps(self, task: Task, graph: Graph) -> bool:
        """ATen operators on dtypes that NumPy has."""
        values = (graph.value[name] for name in (*task.inputs, *task.outputs))
        return task.target.startswith("aten.") and all(value.dtype in _DTYPES for value in values)

    def build(
        self, module: fx.GraphModule, examples: Sequence[torch.Tensor], threads: int, lanes: int
    ) -> Callable[..., Any]:
        """Compile a piece. Raises Refusal where it is too large for one file, else whatever the libraries raise."""
        import onnxruntime

        if sum(tensor.nbytes for tensor in module.buffers()) > 2**31 - 2**26:
            raise Refusal("its weights are larger than the 2 GiB of an ONNX file")
        with _quiet(), torch.no_grad():
            exported = torch.onnx.export(module, tuple(examples), dynamo=True, verbose=False, optimize=True)
            assert exported is not None
            model = exported.model_proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        if lanes > 1:
            # Helpers that spin between two pieces take the core of another lane.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        places = [int(name.rpartition("arg")[2]) for name in names]
        order = {place: index for index, place in enumerate(_places(module))}
        taken = [order[place] for place in places]
        run = session.run

        def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
            feeds = {name: tensors[at].numpy() for name, at in zip(names, taken)}
            return [torch.from_numpy(made) for made in run(None, feeds)]

        return call


def _places(module: fx.GraphModule) -> list[int]:
    """The numbers in the names of its arguments."""
    nodes = module.graph.find_nodes(op="placeholder")
    return [int(str(node.target).removeprefix("arg")) for node in nodes]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter logs of its progress."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels):
            each.setLevel(level)
