"""Hooks of parameters in a training step do what they do in the plain loop."""

import copy

import pytest
import torch
from machines import machine
from models import eager_step, mlp
from torch import nn

import autopar


def hooked(model, kind, seen):
    if kind == "gradient":
        model[0].weight.register_hook(lambda gradient: seen.append(1) or gradient * 2)
    else:

        def double(parameter):
            seen.append(1)
            parameter.grad.mul_(2)

        model[0].weight.register_post_accumulate_grad_hook(double)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "late"),
    [
        ("gradient", False),
        ("accumulated", True),
        pytest.param("gradient", True, marks=pytest.mark.release),
        pytest.param("accumulated", False, marks=pytest.mark.release),
    ],
)
def test_a_hook_changes_the_step_as_in_the_plain_loop(kind, late):
    torch.manual_seed(0)
    model = mlp(torch.float64)
    plain, seen = copy.deepcopy(model), []
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain))
    step = autopar.train_step(model, nn.functional.mse_loss, ours, machine(), split=2, policy="round_robin")
    x, y = torch.randn(8, 6).double(), torch.randn(8, 3).double()
    for turn in range(4):
        if turn == (2 if late else 0):
            hooked(model, kind, seen)
            hooked(plain, kind, [])
        step(x, y)
        eager_step(plain, nn.functional.mse_loss, theirs, x, y)
    assert len(seen) >= (2 if late else 4)
    assert "hook" in step.explain()
    for mine, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


def test_hooks_are_called_without_gradients_as_autograd_calls_them():
    model = mlp()
    weight, modes = model[0].weight, []
    weight.register_hook(lambda gradient: modes.append(torch.is_grad_enabled()) or gradient + 0.1 * weight)
    weight.register_post_accumulate_grad_hook(lambda _: modes.append(torch.is_grad_enabled()))
    step = autopar.train_step(
        model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), machine()
    )
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    for accumulate in (True, True, False):
        step(x, y, accumulate=accumulate)
        assert weight.grad is None or not weight.grad.requires_grad
    assert modes == [False] * 6
    step.close()
