"""Second derivatives of calls: hooks run as often as in eager, and a call that is not the same any more has none."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from machines import machine
from models import mlp
from torch import nn
from torch.autograd import grad

import autopar

pytestmark = pytest.mark.slow


class Wave(nn.Module):
    """Its backward needs neither the input nor the weight, but the result."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([0.1, -0.3, 0.7, 0.2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.shift).exp()


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """A compiled model and its equal."""
    return autopar.compile(Wave(), ["cpu"]), Wave()


@pytest.fixture(scope="module")
def placed() -> tuple[Any, nn.Module]:
    """A model compiled for several devices, and the model."""
    model = mlp()
    return autopar.compile(model, machine(), split=2, policy="round_robin"), model


def test_second_derivatives_are_eagers_however_they_are_asked_for(placed):
    x, weights = torch.randn(8, 6, requires_grad=True), list(placed[1].parameters())

    def asked(call):
        loss = call(x).pow(3).sum()
        (gradient,) = grad(loss, x, create_graph=True)
        yield from grad(loss + gradient.pow(2).sum(), weights, retain_graph=True)
        yield from grad(gradient.pow(2).sum(), x, retain_graph=True)
        yield torch.autograd.functional.hessian(lambda z: call(z).pow(2).sum(), x.detach())
        yield from torch.autograd.functional.hvp(lambda z: call(z).pow(2).sum(), x.detach(), x.detach())

    for mine, plain in zip(*map(asked, placed), strict=True):
        assert torch.allclose(mine, plain, rtol=1e-4, atol=1e-5)
    assert "differentiated once more" in str(placed[0].explain())


def test_a_gradient_made_with_its_graph_may_be_used_as_a_number(placed):
    x, other = torch.randn(8, 6, requires_grad=True), torch.ones(8, 6, requires_grad=True)
    found = []
    for call in placed:
        (gradient,) = grad(call(x).sum(), x, create_graph=True)
        found += grad((gradient * other).sum(), other)
    torch.testing.assert_close(*found)


def test_random_operators_have_no_second_derivative():
    model, x = nn.Sequential(mlp(), nn.Dropout()), torch.randn(8, 6, requires_grad=True)
    loss = autopar.compile(model, ["cpu"])(x).sum()
    (gradient,) = grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative.*fast\.module"):
        (loss + gradient.pow(2).sum()).backward()


def test_weights_that_change_after_a_first_derivative_are_an_error_as_in_eager(placed):
    fast, model = placed
    x = torch.randn(8, 6, requires_grad=True)
    (gradient,) = grad(fast(x).sum(), x, create_graph=True)
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient.pow(2).sum().backward()


@pytest.mark.parametrize("kind", ["weight", "input", "made input"])
def test_hooks_of_what_is_differentiated_run_once(models, kind: str):
    found = []
    for model in models:
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        given = x * 1 if kind == "made input" else x
        ran: list[torch.Tensor] = []

        def double(gradient: torch.Tensor, ran: list[torch.Tensor] = ran) -> torch.Tensor:
            ran.append(gradient)
            return gradient * 2

        handle = (model.shift if kind == "weight" else given).register_hook(double)
        first = grad(model(given).sum(), (model.shift, x), create_graph=True)
        second = grad(sum(each.square().sum() for each in first), (model.shift, x))
        handle.remove()
        found.append((len(ran), *first, *second))
    ours, right = found
    assert ours[0] == right[0]
    torch.testing.assert_close(ours[1:], right[1:])


@pytest.mark.parametrize("what", ["input", "weight"])
def test_a_change_after_the_forward_leaves_the_gradient_right(models, what: str):
    fast, plain = models
    x = torch.randn(3, 4)
    made = fast(x)
    with torch.no_grad():
        (x if what == "input" else fast.shift).add_(1.0)
    (first,) = grad(made.sum(), fast.shift, create_graph=True)
    torch.testing.assert_close(first, made.sum(0))
    with pytest.raises(RuntimeError, match="weights or inputs have changed since"):
        grad(first.sum(), fast.shift)
    with torch.no_grad():
        fast.shift.copy_(plain.shift)


def test_autocast_around_the_backward_alone():
    """The forward that is run again is the one of before, without autocast."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    fast, x = autopar.compile(model, ["cpu"]), torch.randn(3, 4)
    found = []
    for made in (fast(x), model(x)):
        with torch.autocast("cpu", torch.bfloat16):
            found += grad(made.sum(), model[0].weight, create_graph=True)
    torch.testing.assert_close(*found)


def test_a_loss_that_is_kept_keeps_no_inputs():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    fast, losses, inputs = autopar.compile(model, ["cpu"]), [], []
    # The first call is compared with eager.
    fast(torch.randn(3, 4))
    for _ in range(4):
        x = torch.randn(3, 4)
        inputs.append(weakref.ref(x))
        losses.append(fast(x).sum())
        losses[-1].backward()
        del x
    assert not any(each() is not None for each in inputs)
    with pytest.raises(RuntimeError, match="second time"):
        losses[0].backward()


def test_a_backward_without_saved_values_runs_again():
    class Sum(nn.Module):
        """Its gradients are those of its result."""

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    model = Sum()
    made = autopar.compile(model, ["cpu"])(torch.randn(3, 4)).sum()
    for _ in range(2):
        made.backward()
    assert torch.equal(model.shift.grad, torch.full((4,), 6.0))
