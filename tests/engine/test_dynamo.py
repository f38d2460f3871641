"""torch.compile around a compiled model: one graph of both, for the outer backend; and a split model with graph
breaks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import PlanError


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


class Broken(nn.Module):
    """Between its graph breaks there is a part without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        torch._dynamo.graph_break()
        factor = self.last.weight.sum()
        torch._dynamo.graph_break()
        return self.last(hidden) * factor


@pytest.mark.slow
@torch.no_grad()
def test_parts_without_a_batch_stay_whole_if_the_model_is_to_be_split(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    model = Broken()
    fast = autopar.compile(model, ["cpu", "emulated:0"], split=2)
    for _ in range(2):
        x = torch.randn(8, 8)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    splits = [
        program.plan.costed.graph.split
        for served in fast._placement.backend.served
        for program in served.programs.values()
    ]
    assert len(splits) == 3 and sum(map(bool, splits)) == 2, splits
    assert "a part of Broken stays whole" in caplog.text
    fast.close()
    alone = autopar.compile(nn.Linear(8, 8), ["cpu", "emulated:0"], split=3)
    with pytest.raises(PlanError, match="split"):
        alone(torch.randn(8))
