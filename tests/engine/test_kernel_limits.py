"""Kernels for all sizes that are wrong for some, or cannot be compiled so: right answers without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import alone, using
from sized_kernels import SIZES, Attention, Open, alike, ready

import autopar
from autopar.runtime import choice
from autopar.runtime.kernels import Compilation

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


class Short(Open):
    """Right for the examples and somewhat longer inputs, wrong for others."""

    def load(self, work: Compilation) -> Callable[..., Any]:
        call, most = super().load(work), 1.5 * max(tensor.numel() for tensor in work.examples)

        def short(*tensors: torch.Tensor) -> Any:
            off = 1 if work.axes and max(tensor.numel() for tensor in tensors) > most else 0
            return tuple(made + off if off else made for made in call(*tensors))

        return short


def test_a_kernel_that_is_wrong_for_other_sizes_serves_none_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack = Short()
    using(monkeypatch, stack, fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    with caplog.at_level(logging.INFO, "autopar"):
        for sizes in SIZES[1:]:
            alike(fast, model, sizes)
    assert sum("right for some sizes alone" in line.message for line in caplog.records) == 1
    assert "of other sizes: its answer is" in fast.explain()
    built = stack.built
    # Calls of others count once those of the first set have kernels of their own.
    for sizes, times in ((SIZES[1], 1), (SIZES[-1], 12)):
        for _ in range(times):
            alike(fast, model, sizes)
        fast.wait()
    assert stack.built > built
    assert fast._placement.backend.served[-1].programs[SIZES[-1]].executor.serving == "folding"
    for sizes in SIZES[1:]:
        alike(fast, model, sizes)


class Even(Open):
    """Right for even lengths alone."""

    def load(self, work: Compilation) -> Callable[..., Any]:
        call = super().load(work)

        def even(*tensors: torch.Tensor) -> Any:
            odd = any(length % 2 for tensor in tensors for length in tensor.shape)
            return tuple(made + 1 if work.axes and odd else made for made in call(*tensors))

        return even


def test_kernels_that_are_wrong_for_lengths_that_come_late_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    using(monkeypatch, Even(), fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for sizes in ((2, 4), (4, 6)):
        alike(fast, model, sizes)
        fast.wait()
    assert "right for some sizes alone" in fast.explain()
    for sizes in ((4, 8), (6, 10), (8, 12), (2, 16), (4, 7), (5, 9), (3, 4)):
        alike(fast, model, sizes)


class PerSize(Open):
    """Cannot compile for all sizes, and says so late."""

    def load(self, work: Compilation) -> Callable[..., Any]:
        if work.axes:
            raise ValueError("one set of sizes at a time")
        return super().load(work)


def test_kernels_that_cannot_be_compiled_for_all_sizes_are_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = PerSize()
    using(monkeypatch, stack, fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    assert stack.built == 2
    for sizes in SIZES[2:4]:
        alike(fast, model, sizes)
        fast.wait()
    assert stack.built == 4
    for _ in range(12):
        alike(fast, model, SIZES[-1])
    fast.wait()
    assert stack.built == 5
    alike(fast, model, SIZES[-1])


def test_sizes_called_before_it_is_known_that_kernels_are_for_each_get_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = PerSize()
    using(monkeypatch, stack, fastest="folding")
    monkeypatch.setattr(choice, "AFTER", 1000)
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for sizes in (*SIZES[:5], *SIZES[:5]):
        alike(fast, model, sizes)
    fast.wait()
    before = stack.built
    for _ in range(12):
        for sizes in SIZES[2:5]:
            alike(fast, model, sizes)
    fast.wait()
    assert stack.built == before + 3
    for sizes in SIZES[2:5]:
        alike(fast, model, sizes)
