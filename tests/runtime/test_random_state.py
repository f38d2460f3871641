"""The generator is after each call where eager leaves it, after the first, which is held against eager, too."""

from __future__ import annotations

import copy

import pytest
import torch
from machines import machine
from models import eager_step
from torch import nn

import autopar
from autopar.session.compare import error

pytestmark = pytest.mark.slow


class Noisy(nn.Module):
    """Draws of several kinds and sizes, one of them of numbers that depend on the input's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 6), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(torch.tanh(self.layer(x)))
        return h + 0.1 * torch.randn_like(h) + torch.rand(6)


class Norm(nn.Module):
    """A draw and a change of state in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x))


class Opaque(nn.Module):
    """One that runs as written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = nn.functional.dropout(x, 0.5, True)
        return kept * 2 if float(kept.sum()) > 0 else kept


class Island(nn.Module):
    """One of which a part runs as written."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.part = nn.Linear(6, 6), Opaque()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.part(self.layer(x)), 0.5, True)


ONE = (["cpu"], {})
PLACED = (machine(), {"policy": "round_robin", "split": None})
CUT = (machine(), {"policy": "round_robin", "split": 2})
CASES = {
    "on one device": (Noisy, ONE, "first"),
    "placed, checked always": (Noisy, PLACED, "always"),
    "placed, not checked": (Noisy, PLACED, "never"),
    "cut": (Noisy, CUT, "first"),
    "with state": (Norm, PLACED, "first"),
    "as written": (Opaque, PLACED, "always"),
    "with an island": (Island, PLACED, "first"),
}


LOOPS = ["placed, checked always", "cut", "with state"]


@pytest.mark.parametrize(
    ("name", "training"), [*((name, False) for name in CASES), *((name, True) for name in LOOPS)]
)
def test_of_calls_and_loops(name, training):
    make, (devices, options), check = CASES[name]
    torch.manual_seed(0)
    model = make()
    twin, draw = copy.deepcopy(model), torch.Generator()
    fast = autopar.compile(model, devices, check=check, **options)
    found = []
    for call, own in ((twin, twin), (fast, model)):
        torch.manual_seed(7)
        draw.manual_seed(5)
        found.append([])
        # Two signatures, each called twice, in turn.
        for rows in (4, 6, 4, 6):
            with torch.set_grad_enabled(training):
                y = call(torch.randn(rows, 6, generator=draw))
            if training:
                y.square().mean().backward()
                torch.optim.SGD(own.parameters(), 0.1).step()
            found[-1].append((y.detach(), torch.get_rng_state()))
    for (expected, state), (y, ours) in zip(*found):
        assert error(y, expected) < 1e-4 and torch.equal(ours, state)
    for one, other in zip(model.parameters(), twin.parameters()):
        assert one.grad is other.grad is None or error(one.grad, other.grad) < 1e-4
    fast.close()


@pytest.mark.parametrize("check", ["first", "never"])
def test_of_a_training_step(check):
    torch.manual_seed(0)
    model = Noisy()
    twin, draw = copy.deepcopy(model), torch.Generator().manual_seed(5)
    one, two = (torch.optim.SGD(m.parameters(), 0.1) for m in (twin, model))
    step = autopar.train_step(model, nn.MSELoss(), two, machine(), check=check, policy="round_robin")
    for rows in (4, 6, 4, 6):
        x, y = torch.randn(rows, 6, generator=draw), torch.randn(rows, 6, generator=draw)
        state = torch.get_rng_state()
        loss = eager_step(twin, nn.functional.mse_loss, one, x, y)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert step(x, y).item() == pytest.approx(loss.item(), rel=1e-5)
        assert torch.equal(torch.get_rng_state(), after)
    step.close()
