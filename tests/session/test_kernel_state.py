"""Kernels of graphs that change state or inputs in each call: they fold the rest, and read what changes as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, using
from torch import fx, nn

import autopar


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


class Counting(nn.Module):
    """Keeps a mean and a count, and writes to a cache of the caller's, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(2, 8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None = None) -> torch.Tensor:
        y = self.layer(x).tanh()
        before = y + self.mean[0]
        self.mean.add_(y.mean(0))
        self.calls.add_(1)
        if cache is not None:
            cache.copy_(y * 2)
        return before + self.mean[1]


def same(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(found, wanted):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("cached", [True, False])
def test_what_changes_in_each_call_is_read_and_the_rest_folded(
    monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model = Counting().eval()
    plain = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    ours, theirs = ([torch.zeros(4, 8)] if cached else [] for _ in range(2))
    for index in range(24):
        x = torch.randn(4, 8)
        same((fast(x, *ours), *ours), (plain(x, *theirs), *theirs))
        same(tuple(model.buffers()), tuple(plain.buffers()))
        if index == 9:
            assert fast.serving == "folding" and len(folding.built) == 1
            for each in (model, plain):
                each.layer.weight.mul_(1.5)
        if index == 19:
            assert fast.serving == "folding" and len(folding.built) == 2
            for each in (model, plain):
                each.mean.zero_()
    assert fast.serving == "folding" and len(folding.built) == 2


class Cached(nn.Module):
    """Writes a row of a cache at a position that each call moves on, as language models do; fails where it is full."""

    def __init__(self, rows: int = 12) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(rows, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, self.at, self.layer(x))
        self.at.add_(1)
        return self.cache.sum(0)


def test_building_and_racing_change_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model = Cached().eval()
    plain = copy.deepcopy(model)
    fast, x = autopar.compile(model, ["cpu"], kernels="auto"), torch.randn(1, 8)
    # A call that fails builds none, and raises the user's error.
    model.at.fill_(len(model.cache))
    with pytest.raises(IndexError):
        fast(x)
    assert not folding.built
    model.at.zero_()
    fast.prepare(x)
    assert folding.built and torch.equal(model.at, plain.at) and torch.equal(model.cache, plain.cache)
    for _ in range(3):
        same((fast(x), model.cache, model.at), (plain(x), plain.cache, plain.at))
    assert fast.serving == "folding"


@dataclass(eq=False)
class Changing(Folding):
    """The caller changes weights meanwhile, as often as it is told."""

    times: int = 1

    def build(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        if len(self.built) < self.times:
            self.model.weight.mul_(1.5)
        return super().build(module, inputs)


@pytest.mark.parametrize("times", [1, 50])
def test_weights_that_change_meanwhile_are_not_folded(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    changing = Changing("changing", times=times)
    using(monkeypatch, changing, fastest="changing")
    model = changing.model = nn.Linear(8, 8).eval()
    fast, x = autopar.compile(model, ["cpu"], kernels="changing"), torch.randn(4, 8)
    for _ in range(12):
        assert torch.equal(fast(x), model(x))
    # Weights that never rest are not compiled for again and again.
    assert fast.serving == ("changing" if times == 1 else "eager") and len(changing.built) < 6
