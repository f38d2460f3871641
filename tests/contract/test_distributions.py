"""Distributions check their arguments in compiled models, and beside them, as without autopar."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal, kl_divergence

import autopar

NAN = torch.full((4, 5), float("nan"))


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    """Other tests may have used Dynamo themselves, which switches the checks off."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


class Policy(nn.Module):
    """A sampled action, its log-probability, and its distribution."""

    def __init__(self):
        super().__init__()
        self.mean, self.log = nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x):
        normal = Normal(self.mean(x), self.log(x).exp())
        action = normal.rsample()
        return action, normal.log_prob(action), normal


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x, chosen):
        return Categorical(logits=self.layer(x)).log_prob(chosen)


FIRST = """
import torch
import autopar

autopar.compile(torch.nn.Linear(5, 5), ["cpu"])(torch.randn(4, 5))
torch.distributions.Normal(float("nan"), 1.0)
"""


@pytest.mark.slow
def test_the_checks_stay_on():
    """The first use of Dynamo in a process switches them off."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert "ValueError: Expected parameter loc" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "emulated:0", "emulated:1"]])
def test_arguments_are_checked_as_in_eager(devices):
    policy, x = Policy(), torch.randn(4, 5)
    fast = autopar.compile(policy, devices)
    for _ in range(2):
        torch.manual_seed(1)
        wanted = policy(x)
        torch.manual_seed(1)
        action, chance, normal = fast(x)
        torch.testing.assert_close((action, chance), wanted[:2])
        assert type(normal) is Normal
        kl_divergence(normal, Normal(0.0, 1.0)).sum().backward()
        with pytest.raises(ValueError, match="parameter loc"):
            fast(NAN)


@pytest.mark.slow
def test_values_are_checked_as_in_eager():
    fast = autopar.compile(Choice(), ["cpu"])
    fast(torch.randn(4, 5), torch.zeros(4))
    with pytest.raises(ValueError, match="within the support"):
        fast(torch.randn(4, 5), torch.full((4,), 9.0))


@pytest.mark.slow
def test_one_graph_needs_the_checks_off():
    policy, x = Policy(), torch.randn(4, 5)

    def loss(model, x):
        return model(x)[1].mean()

    step = autopar.train_step(policy, None, torch.optim.SGD(policy.parameters(), 0.1), ["cpu"], step_fn=loss)
    with pytest.raises(
        autopar.CaptureError, match=r"validate_args=False.*set_default_validate_args\(False\)"
    ):
        step(x)
    with pytest.raises(ValueError, match="parameter loc"):
        step(NAN)
    Distribution.set_default_validate_args(False)
    assert step(x).isfinite()
