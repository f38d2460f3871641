"""Compiled models and torch.compile: one around the other, graph breaks, code that layers share, and captures without
end."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import re
import weakref
from collections.abc import Callable

import numpy
import pytest
import torch
from machines import TWO
from torch import nn
from turns import by_turns

import autopar
from autopar.capture import dynamo_private
from autopar.errors import CaptureError, PlanError


@pytest.mark.parametrize("training", [False, True])
def test_torch_compile_traces_through_a_compiled_model(training):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fast = autopar.compile(model, TWO, policy="round_robin", split=None)
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
def test_parts_without_a_batch_stay_whole_if_the_model_is_to_be_split(caplog):
    torch.manual_seed(0)
    model = Broken()
    fast = autopar.compile(model, TWO, split=2)
    for _ in range(2):
        x = torch.randn(8, 8)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert fast.explain().count("2 parts: 4 + 4") >= 1
    assert "a part of Broken stays whole" in caplog.text
    fast.close()
    alone = autopar.compile(nn.Linear(8, 8), TWO, split=3)
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
@by_turns(
    "model, training",
    [
        Numbers,
        Numbers,
        *(functools.partial(Masks, *each) for each in itertools.product((False, True), repeat=2)),
    ],
    [False, True],
)
def test_what_is_made_of_numbers_and_changed_in_place(model: Callable[[], nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    model = model()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, TWO, policy="round_robin", split=None)
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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = torch.cat((x, x)).view(len(x) * 2, 2, 2).transpose(1, 2).reshape(len(x) * 2, 4)
        return self.norm(self.linear(twice[: len(x)])).relu() + x


class Blocks(nn.Module):
    """Each block is a function of its own to torch.compile, since the loop around them is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            torch._dynamo.graph_break()
            x = block(x)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_layers_that_share_code_have_weights_of_their_own(training):
    torch.manual_seed(0)
    model = Blocks()
    twin = copy.deepcopy(model)
    kept = [*map(id, model.parameters())]
    fast = autopar.compile(model, TWO, policy="round_robin", split=None)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for rows in (5, 6, 7, 9):
        x = torch.randn(rows, 4)
        with torch.set_grad_enabled(training):
            results = [fast(x), twin(x)]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
        for result, optimizer in zip(results, optimizers) if training else ():
            optimizer.zero_grad()
            result.pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)
    assert [*map(id, model.parameters())] == kept
    fast.close()


@pytest.mark.slow
def test_a_weight_put_in_the_place_of_another_is_read():
    torch.manual_seed(0)
    model = Blocks().eval()
    fast = autopar.compile(model, TWO, policy="round_robin", split=None)
    x = torch.randn(5, 4)
    with torch.no_grad():
        for step in range(6):
            block = model.blocks[step % 3]
            block.linear.weight = nn.Parameter(torch.randn(4, 4))
            model.blocks[0].linear, model.blocks[1].linear = model.blocks[1].linear, model.blocks[0].linear
            assert torch.allclose(fast(x), copy.deepcopy(model)(x), atol=1e-6)
    fast.close()


@pytest.mark.slow
def test_the_weights_of_a_layer_that_was_replaced_are_freed():
    """One that somebody still has may come back."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for rows in (3, 4, 5):
            assert torch.equal(fast(x := torch.randn(rows, 4)), model(x))
        kept, gone = nn.Linear(4, 2), weakref.ref(model[2].weight)
        for again in (True, False, True, False):
            model[2] = kept if again else nn.Linear(4, 2)
            for rows in (5, 6):
                assert torch.equal(fast(x := torch.randn(rows, 4)), model(x))
            gc.collect()
            assert gone() is None
    fast.close()


def test_random_numbers_of_numpy_are_drawn_from_its_own_stream():
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.from_numpy(numpy.random.rand(4))

    x, found = torch.ones(4, dtype=torch.float64), []
    for called in (noisy, autopar.compile(noisy, ["cpu"], check="never")):
        numpy.random.seed(3)
        torch.manual_seed(3)
        found.append([called(x) for _ in range(3)])
    assert all(map(torch.equal, *found))


SAID = r"it was captured .* times, for other values .* TORCH_LOGS=recompiles"


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.linear(x) * len(name) if name != "none" else x


@pytest.fixture
def two_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_private, "CAPTURES", 2)
    monkeypatch.setitem(dynamo_private.SETTINGS, "recompile_limit", 2)


@pytest.mark.slow
def test_after_many_captures_a_model_runs_as_written_and_the_log_says_why(two_captures, caplog):
    model, x = Named(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for name in ("a", "bb", "ccc", "dddd", "a"):
            assert torch.equal(fast(x, name), model(x, name))
    (warned,) = (text for text in caplog.messages if "as written" in text)
    assert re.search(SAID, warned)
    fast.close()


@pytest.mark.slow
def test_a_training_step_refuses_another_capture_and_still_takes_the_old_ones(two_captures):
    model, x = Named(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(
        model, None, optimizer, ["cpu"], step_fn=lambda model, x, name: model(x, name).sum()
    )
    for name in ("a", "bb"):
        step(x, name)
    with pytest.raises(CaptureError, match=f"^Named: {SAID}"):
        step(x, "ccc")
    before = model.linear.weight.detach().clone()
    step(x, "a")
    assert not torch.equal(model.linear.weight, before)
    step.close()
