"""Gradients that are laid out in memory otherwise than their parameter: the bits are those of torch's own step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer

from autopar.training.formulas import entries, formula, norm
from autopar.training.updates import as_grad


@pytest.mark.parametrize("way", ["fused", "foreach"])
@pytest.mark.parametrize("make", [Adam, functools.partial(SGD, lr=0.1, momentum=0.9)])
def test_a_gradient_laid_out_otherwise_is_stepped_with_as_it_stands(
    make: Callable[..., Optimizer], way: str
) -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.arange(35.0).view(5, 7)) for _ in range(2)]
    optimizer, rival = (make([parameter], **{way: True}) for parameter in parameters)
    for each, parameter in zip((optimizer, rival), parameters):
        parameter.grad = torch.ones_like(parameter)
        each.step()
        parameter.grad = None
    mine, theirs = parameters
    gradient = torch.randn(7, 5).t()
    state = (optimizer.state[mine][entry] for entry in entries(optimizer.param_groups[0]))
    with torch.no_grad():
        found, *_ = formula(optimizer, {"w": mine})(("w", 0, mine, gradient, None, *state))
    theirs.grad = gradient.contiguous()
    rival.step()
    assert torch.equal(found, theirs)


def test_norms_are_summed_in_the_order_that_autograd_lays_gradients_out() -> None:
    torch.manual_seed(1)
    gradients = [torch.randn(517, 301).t() for _ in range(5)]
    expected = [torch.linalg.vector_norm(gradient.contiguous()) for gradient in gradients]
    assert [norm(gradient, [517, 1]) for gradient in gradients] == expected


@pytest.mark.parametrize("shared", [False, True])
def test_grad_has_the_strides_of_the_parameter_and_memory_of_its_own(shared: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(5, 7))
    for gradient in (torch.randn(7, 5).t(), torch.randn(5, 7)):
        found = as_grad(gradient, parameter, shared)
        assert torch.equal(found, gradient) and found.stride() == parameter.stride()
        assert (found is gradient) == (not shared and gradient.is_contiguous())
