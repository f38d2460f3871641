"""Calls go straight to chosen kernels, and no longer once anything else is to be done in a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, mlp, using
from shortcuts import long_calls

import autopar
from autopar.runtime import trial
from autopar.runtime.tuned import TunedExecutor


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        using(monkeypatch, Folding(), fastest="folding")
        yield


def ready(x: torch.Tensor) -> tuple[Any, Any, TunedExecutor]:
    """A model, its compiled form, and the executor to whose kernels its calls go straight."""
    model = mlp()
    fast: Any = autopar.compile(model, ["cpu"], kernels="auto")
    for _ in range(60):
        fast(x)
        fast.wait()
        for executor in fast._placement.backend.tuned():
            if executor._ready is not None:
                return model, fast, executor
    raise AssertionError("no call went straight to kernels")


ENDS: dict[str, Callable[[Any, TunedExecutor], Any]] = {
    "weights change": lambda model, executor: model[0].weight.mul_(2),
    "weights change without a trace": lambda model, executor: model[0].weight.data.mul_(2),
    "another arrangement is chosen": lambda model, executor: executor._choice.replace(None),
    "kernels are compiled": lambda model, executor: executor._choice._tell(),
    "the process is a fork": lambda model, executor: executor._choice.forked(),
    "kernels are refuted": lambda model, executor: executor._refute(executor._choice.chosen, 2.0),
}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("end", ENDS, ids=lambda name: name.replace(" ", "-"))
def test_calls_no_longer_go_straight_to_kernels_when(end: str) -> None:
    x = torch.randn(5, 8)
    model, fast, executor = ready(x)
    was: Any = executor._ready
    ENDS[end](model, executor)
    torch.testing.assert_close(fast(x), model(x))
    assert executor._ready is not was
    for _ in range(8):
        torch.testing.assert_close(fast(x), model(x))
        fast.wait()


@pytest.mark.slow
@torch.no_grad()
def test_a_trial_that_is_due_begins_in_a_call_that_went_straight_to_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(5, 8)
    monkeypatch.setattr(trial, "CALLS", 3)
    for name in ("SPAN_S", "TURN_S", "SETTLE_S"):
        monkeypatch.setattr(trial, name, 0.0)
    monkeypatch.setattr(trial, "AGAIN", ((30, 0.0),))
    monkeypatch.setattr(trial.Trial, "ratio", property(lambda self: 0.5))
    _, fast, executor = ready(x)
    for _ in range(40):
        fast(x)
        if executor._trial.on:
            break
    assert executor._trial.on and executor._ready is None


@pytest.mark.slow
@torch.no_grad()
def test_calls_for_which_eager_has_won_go_straight_to_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="eager")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for _ in range(40):
        fast(x)
        fast.wait()
    assert fast.serving == "eager" and long_calls(fast, x) == 0
    # The weights are guarded, since no kernel checks them.
    for change in (
        lambda: model[0].weight.mul_(2),
        lambda: setattr(model[0].weight, "data", torch.ones(16, 8)),
    ):
        change()
        assert torch.equal(fast(x), model(x))
    model.double()
    assert torch.equal(fast(x.double()), model(x.double()))
    model[0].weight = torch.nn.Parameter(torch.zeros(16, 8, dtype=torch.float64))
    assert torch.equal(fast(x.double()), model(x.double()))
