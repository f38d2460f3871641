"""Effects that no result needs: assertions about values, and what the user's own backward draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pairs import alike, compiled, gradients, twins
from torch import nn

import autopar


class Asserts(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # torch.compile makes this of an assert; those of a test module are pytest's.
        torch._assert_async((x < 100).all(), "too large")
        return super().forward(x)


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch._assert_async((gradient < 100).all(), "too steep")
        return gradient * torch.rand_like(gradient) + torch.rand(6)


class Draws(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(Noisy.apply(super().forward(x)))


def test_assertions_about_values_are_made():
    model, x = Asserts(nn.Linear(6, 6), nn.Tanh()), torch.ones(4, 6)
    fast = compiled(model)
    for grad in (False, True, False, True):
        with torch.set_grad_enabled(grad):
            assert alike(fast(x), model(x))
            with pytest.raises(autopar.RunError, match=r"test_effects.py:\d+ failed.*too large"):
                fast(x * 200)
            with pytest.raises(AssertionError, match="too large"):
                fast(x * 200)


def test_a_training_step_that_asserts_changes_nothing():
    model, x = Asserts(nn.Linear(6, 6), nn.Tanh()), torch.ones(4, 6)
    step = autopar.train_step(
        model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), ["cpu"]
    )
    for _ in range(3):
        step(x, x)
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(autopar.AutoparError, match="too large"):
            step(x * 200, x)
        assert alike(before, [parameter.clone() for parameter in model.parameters()])


def test_effects_of_the_users_own_backward_are_not_of_the_forward():
    plain, fast = twins(lambda: Draws(nn.Linear(6, 6), nn.Tanh()))

    def trained(model: nn.Module) -> Any:
        torch.manual_seed(3)
        y = model(torch.ones(4, 6))
        between = torch.rand(2)
        found = gradients(model, y.sum)
        loss = (model(torch.ones(4, 6)) * 200).sum()
        with pytest.raises(RuntimeError, match="too steep"):
            loss.backward()
        return [y.detach(), between, torch.rand(2), found]

    for _ in range(2):
        assert alike(trained(fast), trained(plain))
    assert "as written" not in fast.explain()
