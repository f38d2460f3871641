"""Calls under another autocast are other calls, with graphs of their own."""

from __future__ import annotations

import itertools

import pytest
import torch
from machines import machine
from models import mlp
from torch import nn

import autopar
from autopar.session.compare import error

pytestmark = pytest.mark.slow

CASTS = [None, torch.bfloat16, torch.float16]


def casting(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype, enabled=dtype is not None)


@pytest.mark.parametrize("first", CASTS)
@pytest.mark.parametrize("training", [False, True])
def test_autocast_to_another_dtype_is_another_call(first, training):
    """Every way from one kind of autocast to another and back, in inference."""
    model, x = mlp(), torch.randn(4, 6)
    fast = autopar.compile(model, machine(), policy="round_robin")
    order = CASTS if training else [kind for pair in itertools.permutations(CASTS, 2) for kind in pair]
    for kind in [first, *order]:
        with torch.set_grad_enabled(training), casting(kind):
            found, expected = fast(x), model(x)
        assert found.dtype is expected.dtype is (kind or torch.float32)
        pairs = [(found, expected)]
        if training:
            pairs = zip(*(torch.autograd.grad(y.float().sum(), [*model.parameters()]) for y in pairs[0]))
        assert all(error(a, b) <= 2e-2 for a, b in pairs)
    fast.close()


def test_a_training_step_follows_the_autocast_around_it():
    """A step keeps what is computed under the autocast around it for the calls under the same."""
    model, x, y = mlp(), torch.randn(4, 6), torch.randn(4, 3)
    seen = []

    def loss(output, target):
        seen.append(output.dtype)
        return nn.functional.mse_loss(output.float(), target)

    step = autopar.train_step(model, loss, torch.optim.SGD(model.parameters(), 0.0), ["cpu"])
    for kind in (torch.bfloat16, torch.float16, torch.bfloat16):
        with casting(kind):
            expected = loss(model(x), y).item()
            seen.clear()
            assert step(x, y).item() == expected
    step.close()


def test_each_way_to_call_is_planned_once():
    model, x = mlp(), torch.randn(4, 6)
    fast = autopar.compile(model, ["cpu"])
    plans = set()
    with torch.no_grad():
        for kind in CASTS * 2:
            with casting(kind):
                fast(x)
            plans.add(id(fast.plan))
    assert len(plans) == len(CASTS)
    fast.close()


class Island(nn.Module):
    """Compares its rows in single precision, whatever the autocast around it."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lifted = self.lift(x)
        with torch.autocast("cpu", enabled=False):
            return lifted.float() @ lifted.float().t()


def test_a_backward_is_computed_outside_of_the_autocast_around_its_forward():
    """As torch recommends, and as eager does where only the forward is under autocast."""
    model, x = Island(), torch.randn(4, 6)
    fast = autopar.compile(model, ["cpu"])
    found = []
    for run in (model, fast, fast):
        with casting(torch.bfloat16):
            made = run(x)
        found.append(torch.autograd.grad(made.pow(2).sum(), list(model.parameters())))
    for placed in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], placed))
    fast.close()
