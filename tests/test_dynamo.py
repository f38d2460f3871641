"""torch.compile around a compiled model: it is called, not traced, and trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar
from autopar.session import Session


@pytest.mark.parametrize("training", [False, True])
def test_torch_compile_calls_a_compiled_model_and_does_not_trace_it(training):
    import torch._dynamo

    torch._dynamo.reset()
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
    assert names == {"mul", "add"}
    if training:
        found.sum().backward()
        assert model[0].weight.grad is not None
    fast.close()
    torch._dynamo.reset()


def test_nothing_is_wrapped_round_the_call():
    assert Session._placed.__code__.co_name == "_placed" and not hasattr(Session._placed, "__wrapped__")
