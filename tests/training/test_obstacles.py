"""Reasons why the step of an optimizer cannot be part of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from twins import Make, Twins, nothing

from autopar.training.optimizers import obstacle, trained_parameters


def refused(make: Make, after: Callable[[nn.Module, Optimizer], Any] = nothing) -> str:
    twins = Twins(make)
    after(twins.model, twins.optimizer)
    return obstacle(twins.optimizer, trained_parameters(twins.base))


class OwnSGD(SGD):
    """A subclass may step in any way."""


def set_all(**entries: Any) -> Callable[[nn.Module, Optimizer], None]:
    return lambda model, optimizer: optimizer.param_groups[0].update(entries)


@pytest.mark.parametrize(
    ("make", "after", "words"),
    [
        (lambda m: torch.optim.RMSprop(m.parameters()), None, "RMSprop is not torch's own SGD, Adam, AdamW"),
        (lambda m: OwnSGD(m.parameters()), None, "OwnSGD is not"),
        (lambda m: Adam(m.parameters()), set_all(capturable=True), "param group 0 is capturable"),
        (lambda m: Adam(m.parameters()), set_all(differentiable=True), "param group 0 is differentiable"),
        (lambda m: Adam(m.parameters(), lr=torch.tensor(0.1)), set_all(foreach=True), "which is a tensor"),
        (
            lambda m: SGD(m.parameters()),
            set_all(weight_decay=torch.tensor(0.1, requires_grad=True)),
            "weight_decay of param group 0 requires grad",
        ),
        (lambda m: SGD(m.parameters()), set_all(momentum=0.9), "has no momentum_buffer of scale yet"),
        (lambda m: Adam(m.parameters()), set_all(amsgrad=True), "has no max_exp_avg_sq of scale yet"),
        (lambda m: Adam(m.parameters()), lambda m, o: o.state.clear(), "has no exp_avg of scale yet"),
        (
            lambda m: SGD(m.parameters()),
            lambda m, o: o.param_groups[0]["params"].append(m.fc2.bias),
            "fc2.bias is in the optimizer's param groups twice",
        ),
        (
            lambda m: SGD(m.parameters()),
            lambda m, o: setattr(m.unused.bias, "grad", torch.ones(3)),
            "has a gradient that this model does not give",
        ),
        (
            lambda m: SGD(m.parameters()),
            lambda m, o: o.register_step_pre_hook(lambda *_: None),
            "is called at each step",
        ),
        (
            lambda m: SGD(m.parameters()),
            lambda m, o: setattr(o, "step", lambda: None),
            "the step method of this SGD has been replaced",
        ),
    ],
)  # fmt: skip
def test_obstacles(make, after, words):
    assert refused(make) == "" or after is None
    assert words in refused(make, after or nothing)


def test_a_hook_of_all_optimizers_is_an_obstacle_while_it_is_there():
    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert "is called at each step" in refused(lambda model: SGD(model.parameters()))
    finally:
        handle.remove()
    assert refused(lambda model: SGD(model.parameters())) == ""


def test_a_step_that_a_scheduler_wraps_is_none_unless_it_was_replaced_before():
    def scheduled(model: nn.Module, optimizer: Optimizer) -> None:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def replaced(model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.step = (lambda self: None).__get__(optimizer)
        scheduled(model, optimizer)

    assert refused(lambda model: SGD(model.parameters()), scheduled) == ""
    assert "replaced" in refused(lambda model: SGD(model.parameters()), replaced)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_only_floating_parameters_can_be_tasks(dtype):
    odd = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=False)
    assert f"odd is {str(dtype)[6:]}, not floating point" == obstacle(SGD([odd]), {"odd": odd})


def test_a_sparse_gradient_is_an_obstacle():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    assert (
        obstacle(SGD(table.parameters(), 0.1), dict(table.named_parameters()))
        == "weight has a sparse gradient"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_kernel_that_does_not_repeat_itself_is_an_obstacle(dtype):
    weight = nn.Parameter(torch.ones(64, dtype=dtype))
    weight.grad = torch.ones(64, dtype=dtype)
    optimizer = SGD([weight], 0.1, 0.9, fused=True)
    optimizer.step()
    assert "not reproducible" in obstacle(optimizer, {"weight": weight})
    optimizer.param_groups[0]["fused"] = False
    assert obstacle(optimizer, {"weight": weight}) == ""
