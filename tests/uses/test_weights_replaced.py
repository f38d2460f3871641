"""Weights that others have replaced between a forward and its backward: gradients are those of the weights of the
forward, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pairs import alike, compiled, gradients, twins
from torch import nn
from torch.func import functional_call

from autopar.system import release


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def _called_with_others(run: Any, model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    weights = {name: (3 * value.detach()).requires_grad_() for name, value in model.named_parameters()}
    loss = functional_call(run, weights, (x,)).sum()
    return [*torch.autograd.grad(loss, [*weights.values()]), model[2].weight]


def _given_others(run: Any, model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    weights, loss = [*model.parameters()], run(x).sum()
    old, model[2].weight = model[2].weight, nn.Parameter(torch.ones(6, 6))
    found = torch.autograd.grad(loss, weights)
    assert bool((model[2].weight == 1).all())
    model[2].weight = old
    return [*found, *model.parameters()]


def _without(run: Any, model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    weights, loss = [*model.parameters()], run(x).sum()
    old = model[2].weight
    del model[2].weight
    found = torch.autograd.grad(loss, weights)
    assert not hasattr(model[2], "weight")
    model[2].weight = old
    return [*found]


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [_called_with_others, _given_others, _without])
def test_gradients_are_those_of_the_weights_of_the_forward(replacing: Callable[..., list[torch.Tensor]]):
    plain, fast = twins(_layers)
    x = torch.randn(4, 6)
    for _ in range(4):
        assert alike(replacing(fast, fast.module, x), replacing(plain, plain, x))
    assert "as written" not in fast.explain()


def test_two_modules_given_to_one_function():
    one, two = _layers(), _layers()
    fast = compiled(lambda model, x: model(x))
    weights = [*one.parameters(), *two.parameters()]
    for _ in range(4):
        x = torch.randn(4, 6)
        found = torch.autograd.grad((fast(one, x) * fast(two, x)).sum(), weights)
        assert alike(found, torch.autograd.grad((one(x) * two(x)).sum(), weights))


@pytest.mark.skipif(
    release(torch.__version__) < (2, 13), reason="torch.compile keeps weak references to weights"
)
def test_weights_that_are_swapped_are_read():
    plain, fast = twins(_layers)
    x = torch.randn(4, 6)
    for scale in (1.0, 2.0, 3.0):
        for model in (plain, fast.module):
            torch.utils.swap_tensors(model[2].weight, nn.Parameter(torch.full((6, 6), scale)))
        with torch.no_grad():
            assert alike(fast(x), plain(x))
        assert alike(
            [*gradients(fast, lambda: fast(x).sum()).values()],
            [*gradients(plain, lambda: plain(x).sum()).values()],
        )
