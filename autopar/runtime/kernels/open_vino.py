"""OpenVINO, through `torch.export`; weights are part of the model that it compiles."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import fx

from ...ir.graph import Graph, Task
from .differences import EXACT
from .edge_cases import exact, in_range
from .stack import Compilation, Refusal, Stack, exported, keeps_numpy


def missing() -> str:
    """Return the reason why it cannot be used, such as a missing extra; "" if it can."""
    return "" if find_spec("openvino") else "not installed: openvino (pip install 'autopar[openvino]')"


def keeps(task: Task, graph: Graph) -> bool:
    """Return True for ATen operators, and composites of these, on NumPy's dtypes, except recurrent ones, which its
    converter unrolls step by step."""
    return not task.target.startswith(("aten.lstm", "aten.gru", "aten.rnn")) and keeps_numpy(task, graph)


def compile(work: Compilation) -> None:
    """Convert a piece. Raises Refusal with the operators that read larger integers than it computes with, and the
    library's errors."""
    import openvino

    for node in work.module.graph.find_nodes(op="get_attr"):
        weight = getattr(work.module, str(node.target))
        if weight.dtype not in (torch.int32, torch.int64) or not weight.numel():
            continue
        if max(-int(weight.min()), int(weight.max())) > EXACT:
            readers = ", ".join(str(user.target) for user in node.users)
            raise Refusal(f"a weight has integers above {EXACT}, which it rounds, in {readers}")
    model = openvino.convert_model(exported(work, _apart(exact(work.module))))
    shapes = [list(tensor.shape) for tensor in work.examples]
    for shape, axes in zip(shapes, work.axes):
        for axis in axes:
            shape[axis] = -1
    model.reshape({each: openvino.PartialShape(shape) for each, shape in zip(model.inputs, shapes)})
    openvino.save_model(model, work.folder / "piece.xml", compress_to_fp16=False)


def _apart(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module after letting no two of its results be the same value to the converter, which fails if
    they are: it leaves out copies, and dropout, which does nothing here."""
    (end,) = module.graph.find_nodes(op="output")
    seen, made = set(), []
    for node in end.args[0]:
        source = node
        while getattr(source.target, "overloadpacket", None) in _SAME:
            source = source.args[0]
        if source in seen:
            with module.graph.inserting_before(end):
                longer = module.graph.call_function(_aten.unsqueeze.default, (node, 0))
                node = module.graph.call_function(_aten.squeeze.dim, (longer, 0))
        seen.add(source)
        made.append(node)
    end.args = (tuple(made),)
    module.recompile()
    return module


_aten = torch.ops.aten
_SAME = frozenset({
    _aten.alias, _aten.clone, _aten.contiguous, _aten.detach, _aten.dropout, _aten.lift_fresh_copy, _aten.to,
    _aten._to_copy,
})  # fmt: skip
"""Operators whose result may be their first argument to the converter."""


def load(work: Compilation) -> Callable[..., Any]:
    """Return the kernel of a piece: its own compiled model and request."""
    import openvino

    settings = {
        # By default it computes in bfloat16 on CPUs that have units for it.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": work.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        # With pinning, the models of all lanes would run on the first core.
        "ENABLE_CPU_PINNING": False,
    }
    compiled = openvino.Core().compile_model(work.folder / "piece.xml", "CPU", settings)
    request, count = compiled.create_infer_request(), len(compiled.outputs)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feeds = {at: tensor.numpy(force=True) for at, tensor in enumerate(tensors)}
        made = request.infer(feeds, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(made[at]) for at in range(count)]

    # OpenVINO computes integers as int32 or float32, and gives zeros for an id that its table lacks.
    return in_range(call, work, narrow=True)


STACK = Stack("openvino", True, missing, keeps, load, compile, open=True)
"""OpenVINO's CPU plugin in full precision."""
