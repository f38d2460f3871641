"""What torch.compile leaves in graphs, takes through them, or breaks them at: answers and gradients are eager's."""

from __future__ import annotations

import copy

import numpy
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


class Masks(nn.Module):
    """Writes a weight into a tensor that comes from outside, between two graph breaks or in one graph."""

    def __init__(self, broken: bool, reads: bool) -> None:
        super().__init__()
        self.first, self.fill = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.broken, self.reads = broken, reads
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x) if self.reads else x.clone()
        if self.broken:
            torch._dynamo.graph_break()
        h[1:3] = self.fill
        if self.broken:
            torch._dynamo.graph_break()
        with torch.no_grad():
            self.seen.lerp_(self.fill, 0.5)
        return h * 2


class Numbers(nn.Module):
    """Tensors that forward makes of numbers, which torch.compile leaves in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[0] = 7
        return torch.where(x > 0, y, torch.tensor(-1.5)) * torch.tensor([1.0, 2, 3, 4])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [Numbers(), *(Masks(broken, reads) for broken in (False, True) for reads in (False, True))]
)
@pytest.mark.parametrize("training", [False, True])
def test_what_is_made_of_numbers_and_changed_in_place(model: nn.Module, training: bool) -> None:
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    with torch.set_grad_enabled(training):
        for rows in (5, 5, 4):
            x = torch.randn(rows, 4)
            found, right = fast(x), twin(x)
            torch.testing.assert_close(found, right)
            if training:
                found.pow(2).sum().backward()
                right.pow(2).sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters()):
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.allclose(ours.grad, theirs.grad), name
    assert all(map(torch.allclose, model.buffers(), twin.buffers()))
    fast.close()


def test_an_argument_that_is_given_a_weight() -> None:
    fill = nn.Parameter(torch.randn(4))

    def put(into: torch.Tensor) -> None:
        into[0] = fill

    fast = autopar.compile(put, ["cpu"])
    for _ in range(2):
        into = torch.zeros(2, 4)
        fast(into)
        assert into.requires_grad
        into.sum().backward()
    assert torch.equal(fill.grad, torch.full((4,), 2.0))
    fast.close()


def test_numpys_random_numbers_are_of_its_own_stream() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.from_numpy(numpy.random.rand(4))

    x, found = torch.ones(4, dtype=torch.float64), []
    for called in (noisy, autopar.compile(noisy, ["cpu"], check="never")):
        numpy.random.seed(3)
        torch.manual_seed(3)
        found.append([called(x) for _ in range(3)])
    assert all(map(torch.equal, *found))
