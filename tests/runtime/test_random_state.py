"""The generator is after each call where eager leaves it, after the first, which is held against eager, too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from training_models import machine

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


def still() -> nn.Module:
    """One that draws nothing."""
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU())


ONE = (["cpu"], {})
PLACED = (machine(), {"policy": "round_robin", "split": None})
CUT = (machine(), {"policy": "round_robin", "split": 2})
CASES = {
    "on one device": (Noisy, ONE, "first"),
    "placed": (Noisy, PLACED, "first"),
    "placed, checked always": (Noisy, PLACED, "always"),
    "placed, not checked": (Noisy, PLACED, "never"),
    "cut": (Noisy, CUT, "first"),
    "with state": (Norm, PLACED, "first"),
    "as written": (Opaque, PLACED, "always"),
    "with an island": (Island, PLACED, "first"),
    "without a draw": (still, CUT, "first"),
}


@pytest.mark.parametrize(("make", "way", "check"), CASES.values(), ids=CASES)
def test_of_inference(make, way, check):
    torch.manual_seed(0)
    model = make()
    twin, draw = copy.deepcopy(model), torch.Generator().manual_seed(5)
    fast = autopar.compile(model, way[0], check=check, **way[1])
    torch.manual_seed(7)
    state = torch.get_rng_state()
    # Two signatures, each called twice, in turn.
    for rows in (4, 6, 4, 6):
        x = torch.randn(rows, 6, generator=draw)
        with torch.no_grad():
            torch.set_rng_state(state)
            expected = twin(x)
            after = torch.get_rng_state()
            torch.set_rng_state(state)
            found = fast(x)
        assert error(found, expected) < 1e-5
        assert torch.equal(torch.get_rng_state(), after)
        state = after
    fast.close()


LOOPS = ["on one device", "placed, checked always", "cut", "with state"]


@pytest.mark.parametrize(("make", "way", "check"), [CASES[name] for name in LOOPS], ids=LOOPS)
def test_of_a_loop_of_ones_own(make, way, check):
    torch.manual_seed(0)
    model = make()
    twin, draw = copy.deepcopy(model), torch.Generator().manual_seed(5)
    fast = autopar.compile(model, way[0], check=check, **way[1])
    states = []
    for call, own in ((twin, twin), (fast, model)):
        torch.manual_seed(7)
        draw.manual_seed(5)
        states.append([])
        for rows in (4, 6, 4, 6):
            call(torch.randn(rows, 6, generator=draw)).square().mean().backward()
            states[-1].append(torch.get_rng_state())
            torch.optim.SGD(own.parameters(), 0.1).step()
    assert all(map(torch.equal, *states))
    assert all(error(a.grad, b.grad) < 1e-4 for a, b in zip(model.parameters(), twin.parameters()))
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
        one.zero_grad()
        loss = nn.functional.mse_loss(twin(x), y)
        loss.backward()
        one.step()
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert step(x, y).item() == pytest.approx(loss.item(), rel=1e-5)
        assert torch.equal(torch.get_rng_state(), after)
    step.close()


def test_of_planning_ahead():
    model, x = Noisy(), torch.randn(4, 6)
    state = torch.get_rng_state()
    fast = autopar.compile(model, machine(), example_inputs=(x,), policy="round_robin")
    autopar.plan(model, machine(), example_inputs=(x,))
    assert torch.equal(torch.get_rng_state(), state)
    fast.close()
