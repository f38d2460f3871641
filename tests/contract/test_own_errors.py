"""Errors of the user's own code keep their class, in the first call too; those of a capture are autopar's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autopar

BAD, GOOD = torch.tensor([0, 9]), torch.tensor([0, 1])
REGIONS = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
}


class Rejected(Exception):
    """An error whose constructor takes more than a text."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


@torch.library.custom_op("own_errors::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 1e6:
        raise Rejected(3, "too large")
    if x.min() < -1e6:
        raise ValueError("too small")
    return x.clone()


picky.register_fake(torch.empty_like)


class Rows(nn.Module):
    """Rows of a table, read within a region."""

    def __init__(self, region: str = "none") -> None:
        super().__init__()
        self.region, self.table = REGIONS[region], nn.Embedding(4, 4)

    def forward(self, rows):
        with self.region():
            y = self.table(rows)
        return y * 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = picky(x)
        return self.layer(y)


class Strict(nn.Module):
    """Raises errors of its own for inputs of some shapes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if len(x) == 1:
            raise ValueError("one row is too few")
        if len(x) == 2:
            raise Rejected(4, "two rows")
        if len(x) == 3:
            return self.layer(x)[:, [7]]
        return self.layer(x.reshape(-1, 4)) * {4: 1}[len(x)]


def raised(call: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call(*args)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("region", REGIONS)
def test_operators_within_regions(region):
    model = Rows(region)
    plain = type(raised(model, BAD))
    for outer in (torch.no_grad, torch.enable_grad):
        fast = autopar.compile(model, ["cpu"])
        with outer():
            for _ in range(2):
                assert isinstance(raised(fast, BAD), plain)
            assert torch.equal(fast(GOOD), model(GOOD))
            error = raised(fast, BAD)
    assert isinstance(error, plain) and isinstance(error, autopar.AutoparError)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compile", "DataParallel", "train_step"])
def test_operators_of_the_user(kind):
    model = Scaled()
    if kind == "compile":
        fast = autopar.compile(model, ["cpu"])
    elif kind == "DataParallel":
        fast = autopar.DataParallel(model, ["emulated:0", "emulated:1"])
    else:
        sgd = torch.optim.SGD(model.parameters(), 0.0)
        fast = autopar.train_step(model, None, sgd, ["cpu"], step_fn=lambda model, x: model(x).sum())
    x = torch.ones(4, 4)
    for _ in range(2):
        for sign, wanted in ((1, Rejected), (-1, ValueError)):
            error = raised(fast, x * sign * 1e7)
            assert isinstance(error, wanted) and isinstance(error, autopar.AutoparError)
            assert getattr(error, "code", 3) == 3
        fast(x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compile", "train_step"])
def test_exceptions_of_forward(kind):
    model, random = Strict(), torch.get_rng_state()
    fast = autopar.compile(model, ["cpu"])
    if kind == "train_step":
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        fast = autopar.train_step(model, None, sgd, ["cpu"], step_fn=lambda model, x: model(x).sum())
    for rows, wanted in ((1, ValueError), (2, Rejected), (3, IndexError), (5, KeyError)):
        error = raised(fast, torch.ones(rows, 4))
        assert isinstance(error, wanted) and isinstance(raised(model, torch.ones(rows, 4)), wanted)
    fast(torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), random)


class Counted(nn.Module):
    """Counts its calls and draws numbers before it raises."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        x = x + torch.rand_like(x)
        if len(x) == 1:
            raise ValueError("one row is too few")
        return self.layer(x)


def test_a_step_that_raises_changes_nothing():
    model, random = Counted(), torch.get_rng_state()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    step = autopar.train_step(model, None, sgd, ["cpu"], step_fn=lambda model, x: model(x).sum())
    assert isinstance(raised(step, torch.ones(1, 4)), ValueError)
    assert model.calls == 0 and torch.equal(torch.get_rng_state(), random)


@pytest.mark.slow
def test_what_only_the_capture_cannot_take_is_autopars_error():
    """It says what to do."""

    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x = self.layer(x)
            return x if x.sum() > 0 else -x

    model = Breaks()
    step = autopar.train_step(model, None, torch.optim.SGD(model.parameters(), 0.1), ["cpu"], step_fn=loss)
    error = raised(step, torch.ones(2, 4))
    assert type(error) is autopar.CaptureError and "use torch.where" in str(error)
    autopar.compile(model, ["cpu"])(torch.ones(2, 4))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()
