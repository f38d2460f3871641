"""Compilation of kernels that nobody needs any more: it ends, or does not begin."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compilers import Folding, Late, alone, chosen, compiled, mlp, using

import autopar
from autopar.pipeline import kernel_choice


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def test_what_is_closed_before_its_turn_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One compiles at a time: the thread of a second model waits for the first."""
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    with kernel_choice._one:
        for _ in range(4):
            fast(x)
        fast.close()
    fast.wait()
    assert folding.built == 0 and chosen(fast) == "eager"
    assert "folding: not tried, the compiled model was closed" in fast.explain()
    assert torch.equal(fast(x), model(x))


def test_what_was_closed_before_is_compiled_again_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    fast.close()
    model[0].weight.mul_(1.5)
    fast(x)
    fast.wait()
    assert chosen(fast) == "folding"
    torch.testing.assert_close(fast(x), model(x))


def test_a_model_that_is_gone_needs_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    late, last = Late("late"), Folding("last")
    using(monkeypatch, late, last, fastest="last")
    fast, x = autopar.compile(mlp(), ["cpu"], kernels="auto"), torch.randn(5, 8)
    for _ in range(4):
        fast(x)
    assert late.begun.wait(60)
    builder = next(each for each in threading.enumerate() if each.name == "autopar kernels")
    del fast
    gc.collect()
    late.may.set()
    builder.join(60)
    assert not builder.is_alive() and last.built == 0
