"""torch.compile around a compiled model: one graph of both, for the outer backend."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar


@pytest.mark.parametrize("training", [False, True])
def test_torch_compile_traces_through_a_compiled_model(training):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    traced: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs):
        traced.append(graph)
        return graph.forward

    def around(x: torch.Tensor) -> torch.Tensor:
        return fast(x * 2) + 1

    x = torch.randn(4, 8)
    outer = torch.compile(around, backend=backend)
    with torch.set_grad_enabled(training):
        found = outer(x)
    assert torch.allclose(found, model(x * 2) + 1, atol=1e-6)
    names = {node.name for graph in traced for node in graph.graph.nodes if node.op == "call_function"}
    assert {"mul", "add"} <= names
    if training:
        found.sum().backward()
        assert model[0].weight.grad is not None
    fast.close()
    torch._dynamo.reset()
