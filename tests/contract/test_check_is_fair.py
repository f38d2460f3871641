"""The first check refuses wrong answers, and lets through right ones that are rounded otherwise or whose model another
thread has changed meanwhile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autopar

HALVES: dict[str, Any] = {"devices": ["cpu*2"], "split": 2}


class Centred(nn.Module):
    """The second result is zero but for rounding, and for what `captured` adds to it in the captured graph."""

    def __init__(self, captured: float = 0.0) -> None:
        super().__init__()
        self.captured = captured

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x - x.mean(1, keepdim=True)
        x = x - x.mean(1, keepdim=True)
        return x, x.mean((1, 2)) + (self.captured if torch.compiler.is_compiling() else 0.0)


@pytest.mark.parametrize("rows", [(8, 5), (12, 9), (16, 7), (6, 3)])
def test_a_mean_of_centred_values_may_be_rounded_otherwise(rows: tuple[int, int]):
    torch.manual_seed(1)
    model = Centred()
    fast = autopar.compile(model, **HALVES)
    x = torch.randn(rows[1], rows[0], 4).transpose(0, 1)
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-6)
    fast.close()


def test_a_wrong_value_that_is_small_is_refused():
    fast = autopar.compile(Centred(1e-6), **HALVES)
    with pytest.raises(autopar.DifferenceError, match="output 1 is not the model's"):
        fast(torch.randn(8, 5, 4))
    fast.close()


class Shifted(nn.Module):
    """A shift that the softmax cancels: its gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x + self.shift, 1)


@pytest.mark.slow
@pytest.mark.parametrize("stepped", [False, True])
def test_a_gradient_that_is_zero_but_for_rounding(stepped: bool):
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = Shifted(), torch.randn(12, 7)
        if stepped:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            step = autopar.train_step(
                model, None, optimizer, step_fn=lambda m, x: m(x)[:, 0].square().mean(), **HALVES
            )
            step(x)
            step.close()
        else:
            fast = autopar.compile(model, **HALVES)
            fast(x)[:, 0].square().mean().backward()
            fast.close()
        assert all(torch.isfinite(weight).all() for weight in model.parameters())


class Counts(nn.Module):
    """Its integers are others when it is captured; `rounded`: other ones follow from floats, as an argmax does."""

    def __init__(self, rounded: bool, step: int) -> None:
        super().__init__()
        self.rounded, self.step = rounded, step

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = torch.arange(4) + (self.step if torch.compiler.is_compiling() else 0)
        return counts, x.argmax(-1) if self.rounded else x * 2


@torch.no_grad()
def test_integers_that_no_rounding_explains_are_compared():
    x = torch.randn(3, 5)
    with pytest.raises(autopar.DifferenceError, match="output 0 is not the model's"):
        autopar.compile(Counts(False, 1), ["cpu"])(x)
    for rounded in (False, True):
        model = Counts(rounded, 0)
        assert all(map(torch.equal, autopar.compile(model, ["cpu"])(x), model(x)))


class Changing(nn.Module):
    """Its plain form changes, `times` times, as if another thread did while the first check runs it."""

    def __init__(self, times: int, back: bool) -> None:
        super().__init__()
        self.layer, self.times, self.back = nn.Linear(6, 6), times, back
        self.others = [nn.Linear(6, 6) for _ in range(8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return self.layer(x)
        return changed(self, x)


def changed(model: Changing, x: torch.Tensor) -> torch.Tensor:
    if not model.times:
        return model.layer(x)
    model.times -= 1
    layer, other = model.layer, model.others[model.times % 8]
    if model.back:
        return other(x)
    del layer
    model.layer = other
    return other(x)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_layer_replaced_during_the_check_is_no_difference(back: bool, grad: bool):
    torch.manual_seed(0)
    model, x = Changing(2, back), torch.randn(4, 6)
    fast = autopar.compile(model, ["cpu"])
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            fast(x)
        model.times = 0
        torch.testing.assert_close(fast(x), copy.deepcopy(model)(x))
    fast.close()


def test_a_model_that_always_differs_is_refused_with_its_buffers_as_before():
    model = nn.Sequential(nn.BatchNorm1d(6), Changing(99, True))
    fast = autopar.compile(model, ["cpu"])
    with pytest.raises(autopar.DifferenceError, match="output 0 is not the model's"):
        fast(torch.randn(4, 6))
    assert not model[0].num_batches_tracked
    fast.close()
