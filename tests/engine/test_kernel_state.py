"""Kernels of graphs that change state or inputs in each call: they fold the rest, and read what changes as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compilers import Folding, alone, chosen, using
from torch import nn

import autopar
from autopar.runtime.kernels import Compilation


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
        if index in (4, 14):
            fast.wait()
        if index == 9:
            assert chosen(fast) == "folding" and folding.built == 1
            for each in (model, plain):
                each.layer.weight.mul_(1.5)
        if index == 19:
            assert chosen(fast) == "folding" and folding.built == 2
            for each in (model, plain):
                each.mean.zero_()
    assert chosen(fast) == "folding" and folding.built == 2


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


class Full(Folding):
    """The caller has filled the cache when this has compiled."""

    model: Cached

    def compile(self, work: Compilation) -> None:
        self.model.at.fill_(len(self.model.cache))


def test_state_that_moves_on_is_compared_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full("full")
    using(monkeypatch, full, fastest="full")
    model = full.model = Cached().eval()
    fast, x = autopar.compile(model, ["cpu"], kernels="auto"), torch.randn(1, 8)
    for _ in range(2):
        fast(x)
    before = model.cache.clone()
    fast.wait()
    assert chosen(fast) == "full" and torch.equal(model.cache, before)


def test_a_cache_that_is_full_by_then_is_no_example(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model = Cached().eval()
    fast, x = autopar.compile(model, ["cpu"], kernels="auto"), torch.randn(1, 8)
    for _ in range(2):
        fast(x)
    model.at.fill_(len(model.cache))
    fast.wait()
    assert chosen(fast) == "eager"
    model.at.zero_()
    for _ in range(4):
        fast(x)
    fast.wait()
    assert chosen(fast) == "folding"
    plain = copy.deepcopy(model)
    assert torch.equal(fast(x), plain(x)) and torch.equal(model.at, plain.at)


class Changing(Folding):
    """The caller changes weights meanwhile, as often as it is told."""

    model: nn.Linear
    times = 1

    def compile(self, work: Compilation) -> None:
        if self.built <= self.times:
            self.model.weight.mul_(1.5)


@pytest.mark.parametrize("times", [1, 5])
def test_waiting_covers_weights_that_changed_meanwhile(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    changing = Changing("changing")
    using(monkeypatch, changing, fastest="changing")
    model = changing.model = nn.Linear(8, 8).eval()
    changing.times = times
    fast, x = autopar.compile(model, ["cpu"], kernels="auto"), torch.randn(4, 8)
    fast(x)
    fast.wait(60)
    # Weights that never rest let nobody wait forever.
    assert changing.built == 2 and chosen(fast) == ("changing" if times == 1 else "eager")
    assert torch.equal(fast(x), model(x))
