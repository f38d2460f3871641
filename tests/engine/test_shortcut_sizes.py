"""Shortcuts of a graph with open sizes: each set of sizes has its program."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compilers import Folding, alone, mlp, using
from shortcuts import long_calls
from torch import Tensor, nn

import autopar
from autopar.engine.compiled import Compiled

pytestmark = pytest.mark.slow

LONG = 30
"""Calls by way of Dynamo before a shortcut is sought for the second time."""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        using(monkeypatch, Folding(), fastest="folding")
        yield


def varied(fast: Compiled, *rows: int) -> None:
    """Call with batches of these rows until a shortcut has been sought twice."""
    for _ in range(LONG):
        for number in rows:
            x = torch.randn(number, 8)
            torch.testing.assert_close(fast(x), fast.module(x))
        fast.wait()


@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_each_set_of_sizes_goes_straight_to_its_program(kernels: str) -> None:
    fast = autopar.compile(mlp(), ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    varied(fast, 5, 4, 6)
    assert [long_calls(fast, torch.randn(rows, 8)) for rows in (5, 4, 6)] == [0, 0, 0]
    # The first call of a new size is compared with eager or makes a program.
    assert long_calls(fast, torch.randn(9, 8)) >= 1
    varied(fast, 9)
    assert long_calls(fast, torch.randn(9, 8)) == 0
    # One row has a graph of its own.
    assert long_calls(fast, torch.randn(1, 8)) == 2


@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_other_weights_are_seen_at_each_size(kernels: str) -> None:
    model = mlp()
    fast = autopar.compile(model, ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    varied(fast, 5, 4, 6)
    for change in (
        lambda weight: weight.mul_(1.5),
        lambda weight: setattr(weight, "data", weight.data + 1),
    ):
        change(model[0].weight)
        for rows in (5, 4, 6, 7, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), model(x))
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
    for rows in (5, 4, 6, 7, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fast(x), model(x))


def test_a_dropped_program_is_not_called() -> None:
    model = mlp()
    fast = autopar.compile(model, ["cpu"])
    varied(fast, 5, 4, 6)
    x = torch.randn(5, 8)
    assert long_calls(fast, x) == 0
    (served,) = (each for each in fast._placement.backend.served if each.programs.current((5,)) is not None)
    served.forget(*served.programs)
    assert long_calls(fast, x) >= 1
    assert long_calls(fast, x) == 0


def test_no_form_of_call_keeps_a_dropped_program_alive() -> None:
    model = mlp()
    fast = autopar.compile(model, ["cpu"], kernels="eager")
    varied(fast, 5, 4, 6)
    for _ in range(LONG):
        fast(input=torch.randn(5, 8))
    assert long_calls(fast, input=torch.randn(5, 8)) == long_calls(fast, torch.randn(5, 8)) == 0
    captured = fast._placement.backend.served
    programs = [weakref.ref(program) for served in captured for program in served.programs.values()]
    for served in captured:
        served.forget(*served.programs)
    for _ in range(2):
        fast(torch.randn(5, 8))
    gc.collect()
    assert programs and not any(program() for program in programs)


class Pair(nn.Module):
    """Its arguments have equal numbers of rows, and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        return self.layer(x) * y * factor


def test_sizes_that_belong_together_and_floats() -> None:
    model = Pair()
    fast = autopar.compile(model, ["cpu"])
    for at in range(LONG):
        for rows in (5, 4, 6):
            x, y = torch.randn(2, rows, 8)
            torch.testing.assert_close(fast(x, y, factor=(at % 3) / 2), model(x, y, factor=(at % 3) / 2))
    x, y = torch.randn(2, 5, 8)
    assert long_calls(fast, x, y, factor=0.5) == 0
    assert long_calls(fast, x, y, factor=1) == 2
    torch.testing.assert_close(fast(x, y, factor=-0.0), model(x, y, factor=-0.0))
    assert torch.equal(fast(x, y, factor=-0.0).signbit(), model(x, y, factor=-0.0).signbit())
    # Other calls than those of equal rows: one row is repeated, and the rest is an error as in eager.
    torch.testing.assert_close(fast(x, y[:1], factor=0.5), model(x, y[:1], factor=0.5))
    with pytest.raises(Exception, match=r"must match|size"):
        fast(x, y[:4], factor=0.5)
    shortcut = fast._placement.direct._search((x, y), {"factor": 0.5}, False).shortcut
    for other in ((x, y[:4]), (x, y[:1]), (x.T.contiguous().T, y), (x.double(), y)):
        assert shortcut(other, {"factor": 0.5}) is None
    assert torch.equal(shortcut((x, y), {"factor": 0.5}), model(x, y, 0.5))
    assert long_calls(fast, x, y, factor=0.5) == 0


@torch.enable_grad()
def test_calls_to_be_differentiated() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu"])
    ours, theirs = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, twin))
    for _ in range(LONG):
        for rows in (5, 4, 6):
            x = torch.randn(rows, 8)
            for call, optimizer in ((fast, ours), (twin, theirs)):
                optimizer.zero_grad()
                call(x).square().mean().backward()
                optimizer.step()
            for mine, other in zip(model.parameters(), twin.parameters()):
                torch.testing.assert_close(mine, other)
    for rows in (5, 4, 6):
        x = torch.randn(rows, 8)
        assert long_calls(fast, x) == 0
        firsts = [
            torch.autograd.grad(each(x).square().sum(), each[0].weight, create_graph=True)[0]
            for each in (fast, model)
        ]
        # The call runs once more in eager for a second derivative, and needs its sizes.
        seconds = [torch.autograd.grad(first.sum(), model[2].weight)[0] for first in firsts]
        torch.testing.assert_close(*seconds)
