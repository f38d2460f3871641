"""What `explain()` says of calls without kernels, and the memory that kernels for many sizes take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compilers import Folding, alone, using
from torch import nn

import autopar
from autopar.session.program_cache import CHECKED

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def called(fast: autopar.Compiled, batches: range) -> None:
    """Call with each batch size in turn, twice."""
    for batch in (*batches, *batches):
        fast(torch.randn(batch, 256))


def wide() -> nn.Module:
    """A model of 257 KiB of weights."""
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU()).eval()


def test_kernels_of_many_sizes_keep_a_memory_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    # Room for the weights, and for kernels of three sets of sizes with two copies of them each.
    fast = autopar.compile(wide(), ["cpu"], kernels="auto", memory={"cpu": "2MiB"}, dynamic=True)
    called(fast, range(2, 12))
    assert len(folding.built) == 3
    assert "no kernels: cpu lacks the memory for more copies" in fast.explain()


def test_kernels_that_lost_leave_their_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="eager")
    fast = autopar.compile(wide(), ["cpu"], kernels="auto", memory={"cpu": "2MiB"}, dynamic=True)
    called(fast, range(2, 12))
    assert len(folding.built) == CHECKED


def test_a_model_without_kernels_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    for memory in ({}, {"cpu": "400KiB"}):
        drawing = nn.Sequential(nn.Linear(256, 256), nn.ReLU() if memory else nn.Dropout(0.5))
        fast = autopar.compile(drawing, ["cpu"], kernels="auto", memory=memory)
        called(fast, range(2, 3))
        why = "cpu lacks the memory for other copies" if memory else "it draws random numbers"
        assert f"Sequential: no kernels: {why}" in fast.explain()


def test_weights_whose_changes_nobody_counts_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    with torch.inference_mode():
        model = wide()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        called(fast, range(2, 3))
    assert not folding.built
    assert "no kernels: weights or buffers were made in torch.inference_mode" in fast.explain()


def test_calls_of_other_sizes_say_that_they_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    fast = autopar.compile(wide(), ["cpu"], kernels="auto")
    called(fast, range(2, 12))
    assert "calls with 6 other sets of sizes share a program; PyTorch's kernels" in fast.explain()
