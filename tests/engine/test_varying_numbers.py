"""Floats and counts that change from call to call: captured once more for all of their values, and right for each."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import alone, using
from sized_kernels import Open
from torch import nn
from torch.utils.checkpoint import checkpoint
from varying import VALUES, Scaled, alike, captures

import autopar

pytestmark = pytest.mark.slow

PLACES = (["cpu"], ["cpu", "emulated:0"])


@pytest.mark.parametrize("devices", PLACES)
def test_all_values_of_a_float_are_captured_once_more(devices):
    model = Scaled()
    fast = autopar.compile(model, devices)
    with torch.no_grad():
        for value in VALUES:
            for rows in (3, 5):
                x = torch.randn(rows, 4)
                alike(fast(x, value), model(x, value))
    # The first value, the first rows, and all of both.
    assert captures(fast) <= 3
    fast.close()


def test_special_values_are_captured_for_themselves():
    model = Scaled()
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(3, 4)
    with torch.no_grad():
        for value in (0.1, 0.2, math.inf, 0.3):
            alike(fast(x, value), model(x, value))
        assert fast(x, math.nan)[0].isnan().all()
    assert captures(fast) <= 4
    fast.close()


@pytest.mark.parametrize("devices", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.release)])
def test_trained_with_a_float_that_varies(devices):
    model = Scaled()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, devices)
    for value in VALUES:
        x = torch.randn(3, 4)
        ours, right = fast(x, value), twin(x, value)
        for output, parameters in ((ours, model), (right, twin)):
            parameters.zero_grad()
            output[0].square().sum().backward()
        assert torch.allclose(ours[0], right[0])
        assert torch.allclose(model.linear.weight.grad, twin.linear.weight.grad, atol=1e-6)
    assert captures(fast) <= 2
    fast.close()


def test_a_training_step_takes_a_float_that_varies():
    class Loss(Scaled):
        def forward(self, x, t):
            return super().forward(x, t)[0].square().mean()

    model = Loss()
    twin = copy.deepcopy(model)
    made, plain = (torch.optim.SGD(each.parameters(), 0.01) for each in (model, twin))
    step = autopar.train_step(model, None, made, ["cpu"], step_fn=lambda model, x, t: model(x, t))
    for value in VALUES:
        x = torch.randn(3, 4)
        plain.zero_grad()
        loss = twin(x, value)
        loss.backward()
        plain.step()
        assert torch.allclose(step(x, value), loss)
    assert torch.allclose(model.linear.weight, twin.linear.weight, atol=1e-6)
    # Their programs are few: the first value's, and that of all.
    assert sum(map(len, step._signatures.kept)) <= 2
    step.close()


class Turned(torch.autograd.Function):
    """Gradient reversal: the backward reads a float."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, t: float) -> torch.Tensor:
        ctx.t = t
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.t * gradient, None


def _checkpointed(model: Any, x: torch.Tensor, t: float) -> torch.Tensor:
    return checkpoint(lambda x: model.linear(x) * t, x, use_reentrant=False) + t


def _turned(model: Any, x: torch.Tensor, t: float) -> torch.Tensor:
    return Turned.apply(model.linear(x), t) * t


def _both(model: Any, x: torch.Tensor, t: float) -> torch.Tensor:
    return checkpoint(lambda x: Turned.apply(model.linear(x), t), x, use_reentrant=False)


@pytest.mark.parametrize("inner", [_checkpointed, _turned, _both])
def test_a_float_that_is_first_read_in_a_part_of_the_graph(inner):
    class Inner(Scaled):
        def forward(self, x, t):
            return inner(self, x, t)

    model = Inner()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu"])
    for value in VALUES:
        x = torch.randn(3, 4)
        ours, right = fast(x, value), twin(x, value)
        for output, parameters in ((ours, model), (right, twin)):
            parameters.zero_grad()
            output.square().sum().backward()
        assert torch.equal(ours, right)
        assert torch.allclose(model.linear.weight.grad, twin.linear.weight.grad, atol=1e-6)
    assert captures(fast) <= 2
    assert not fast._placement.backend.unplaced
    fast.close()


def test_a_training_step_with_such_a_float():
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    made, plain = (torch.optim.SGD(each.parameters(), 0.01) for each in (model, twin))

    def loss(model, x, t):
        return (Turned.apply(model(x), t) * t).square().mean()

    step = autopar.train_step(model, None, made, ["cpu"], step_fn=loss)
    for value in VALUES:
        x = torch.randn(3, 4)
        plain.zero_grad()
        right = loss(twin, x, value)
        right.backward()
        plain.step()
        assert torch.allclose(step(x, value), right)
    assert torch.allclose(model.weight, twin.weight, atol=1e-6)
    assert sum(map(len, step._signatures.kept)) <= 2
    step.close()


class Counting(nn.Module):
    """Numbers that a module changes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls, self.rate = 0, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rate *= 0.9
        return self.linear(x) * self.rate + self.calls


@pytest.mark.parametrize("training", [False, True])
def test_numbers_that_a_module_changes_are_captured_once_more(training):
    model = Counting()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu"])
    with torch.set_grad_enabled(training):
        for _ in range(9):
            x = torch.randn(3, 4)
            assert torch.equal(fast(x), twin(x))
            assert (model.calls, model.rate) == (twin.calls, twin.rate)
    assert captures(fast) <= 2
    fast.close()


def test_floats_are_constants_if_no_size_is_open():
    class Finite(Scaled):
        def forward(self, x, t):
            return self.linear(x) * (t if math.isfinite(t) else 0.0)

    model = Finite()
    fast = autopar.compile(model, ["cpu"], dynamic=False)
    for value in VALUES[:3]:
        x = torch.randn(3, 4)
        assert torch.equal(fast(x, value), model(x, value))
    assert captures(fast) == 3 and "graph break" not in fast.explain()
    fast.close()


def test_kernels_serve_all_values_and_the_float_stays_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Long(Scaled):
        def forward(self, x, t):
            return (self.linear(x).relu() * t).tanh()

    with alone(tmp_path, monkeypatch):
        stack = Open()
        using(monkeypatch, stack, fastest="folding")
        model = Long()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        with torch.no_grad():
            for value in VALUES[:2]:
                x = torch.randn(3, 4)
                torch.testing.assert_close(fast(x, value), model(x, value))
                fast.wait()
            built = stack.built
            for value in VALUES:
                x = torch.randn(3, 4)
                torch.testing.assert_close(fast(x, value), model(x, value))
            fast.wait()
            assert stack.built == built and fast.serving == "folding"
        fast.close()


def test_a_float_that_varies_in_a_plain_torch_compile():
    model = Scaled()
    fast = torch.compile(model, backend="autopar")
    with torch.no_grad():
        for value in VALUES[:4]:
            x = torch.randn(3, 4)
            alike(fast(x, value), model(x, value))
