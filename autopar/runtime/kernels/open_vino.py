"""OpenVINO, by way of `torch.export`: weights are part of the model it compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import fx

from ...ir.graph import Graph, Task

_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class OpenVino:
    """OpenVINO's CPU plugin in full precision."""

    name, frozen = "openvino", True

    def missing(self) -> str:
        """It is an extra."""
        return "" if find_spec("openvino") else "not installed: openvino (pip install 'autopar[openvino]')"

    def keeps(self, task: Task, graph: Graph) -> bool:
        """ATen operators on dtypes that NumPy has; its converter writes recurrent layers out step by step."""
        values = (graph.value[name] for name in (*task.inputs, *task.outputs))
        plain = task.target.startswith("aten.") and not task.target.startswith(
            ("aten.lstm", "aten.gru", "aten.rnn")
        )
        return plain and all(value.dtype in _DTYPES for value in values)

    def build(
        self, module: fx.GraphModule, examples: Sequence[torch.Tensor], threads: int, _: int
    ) -> Callable[..., Any]:
        """Compile a piece. Raises whatever the libraries raise."""
        import openvino

        with torch.no_grad():
            exported = torch.export.export(module, tuple(examples))
        model = openvino.convert_model(exported)
        model.reshape({each: list(tensor.shape) for each, tensor in zip(model.inputs, examples)})
        settings = {
            # On CPUs with bfloat16 units it would compute in that.
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = openvino.Core().compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        count = len(model.outputs)

        def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
            feeds = {at: tensor.numpy() for at, tensor in enumerate(tensors)}
            made = request.infer(feeds, share_inputs=True, share_outputs=False)
            return [torch.from_numpy(made[at]) for at in range(count)]

        return call
