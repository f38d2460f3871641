"""Calls that the model itself answers: only where its placed form is slower, and only of what an answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, compiled, mlp, using
from torch import nn

import autopar
from autopar.engine import direct
from autopar.engine.compiled import Compiled
from autopar.runtime import trial


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(direct, "UNSEEN", 0)
    with alone(tmp_path, monkeypatch):
        yield


def decided(monkeypatch: pytest.MonkeyPatch, ratio: float, after: int = 4) -> None:
    """Let trials between the model and its placed form end after some calls with this outcome."""
    monkeypatch.setattr(trial, "CALLS", 1)
    noted: dict[trial.Trial, int] = {}

    def note(self: trial.Trial, *_: Any) -> None:
        noted[self] = noted.get(self, 0) + 1

    monkeypatch.setattr(trial.Trial, "note", note)
    monkeypatch.setattr(trial.Trial, "over", property(lambda self: noted.get(self, 0) >= after))
    monkeypatch.setattr(trial.Trial, "ratio", ratio)


def placed_calls(fast: Compiled, *args: Any, calls: int = 6) -> int:
    """How many of some calls the placed form answers, each of which must be right."""
    backend = fast._placement.backend
    before = backend.calls
    for _ in range(calls):
        assert torch.equal(fast(*args), fast.module(*args))
    return backend.calls - before


def slower(monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: torch.Tensor) -> Compiled:
    """A compiled model whose calls with `x` the model itself answers."""
    using(monkeypatch, Folding(), fastest="none")
    fast = compiled(model, x)
    decided(monkeypatch, 1.5)
    placed_calls(fast, x)
    assert placed_calls(fast, x) == 0
    return fast


def test_the_model_itself_serves_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = slower(monkeypatch, model, x)
    assert "the model itself answers calls of 1 sets of sizes: placed they took up to 1.50" in fast.explain()
    assert fast.serving == "the model itself"
    model[0].weight.mul_(2)
    model[3] = nn.Linear(16, 3)
    assert placed_calls(fast, x) == 0


@pytest.mark.slow
def test_other_calls_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = slower(monkeypatch, model, x)
    assert placed_calls(fast, torch.randn(7, 8), calls=1) == 1
    assert placed_calls(fast, x.double().float().to(torch.float32), calls=1) == 0
    with torch.enable_grad():
        assert placed_calls(fast, x, calls=1) == 1
    with fast.record() as recording:
        assert placed_calls(fast, x, calls=2) == 2
    assert len(recording.calls) == 2


def test_the_placed_form_stays_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    fast = compiled(mlp(), x := torch.randn(5, 8))
    decided(monkeypatch, 0.9)
    placed_calls(fast, x)
    assert placed_calls(fast, x, calls=3) == 3
    assert "the model itself" not in fast.explain() and fast.serving == "folding"


def test_no_trial_before_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="none")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    decided(monkeypatch, 1.5, after=2)
    assert placed_calls(fast, x, calls=2) == 2
    (executor,) = fast._placement.backend.tuned()
    assert not executor.settled and not fast.settled
    fast.wait()
    assert executor.settled and fast.settled
    placed_calls(fast, x)
    assert placed_calls(fast, x) == 0


def test_another_trial_is_held_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "AGAIN", ((3, 0.0),))
    model, x = mlp(), torch.randn(5, 8)
    using(monkeypatch, Folding(), fastest="none")
    fast = compiled(model, x)
    decided(monkeypatch, 1.5, after=1)
    assert placed_calls(fast, x, calls=1) == 1 and not fast.settled, "known, and to be tried"
    assert placed_calls(fast, x, calls=1) == 1 and fast.settled, "tried"
    assert placed_calls(fast, x, calls=3) == 0
    decided(monkeypatch, 0.9, after=1)
    assert placed_calls(fast, x, calls=4) == 4


@pytest.mark.parametrize(
    "options",
    [{"kernels": "eager"}, {"kernels": "onnxruntime"}, {"check": "always"}, {"batch_norm": "per_part"}],
    ids=str,
)
def test_what_asks_for_the_plan_is_placed(options: dict[str, Any]) -> None:
    fast = autopar.compile(mlp(), ["cpu"], **{"kernels": "auto", **options})
    assert not fast._placement.direct.contested


def test_emulated_devices_and_given_plans_are_placed() -> None:
    model, x = mlp(), torch.randn(5, 8)
    emulated = autopar.compile(model, ["cpu", "emulated:0"], kernels="auto")
    assert not emulated._placement.direct.contested
    plan = autopar.plan(model, ["cpu"], example_inputs=(x,))
    assert not autopar.compile(model, ["cpu"], kernels="auto", plan=plan)._placement.direct.contested


def test_a_real_trial_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="none")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    monkeypatch.setattr(trial, "CALLS", 4)
    monkeypatch.setattr(trial, "SPAN_S", 0.0)
    monkeypatch.setattr(trial, "TURN_S", 0.0)
    monkeypatch.setattr(trial, "SETTLE_S", 0.0)
    placed_calls(fast, x, calls=40)
    assert placed_calls(fast, x, calls=5) in (0, 5)


@pytest.mark.slow
def test_sizes_are_looked_at_again_after_some_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "UNSEEN", 3)
    fast = slower(monkeypatch, mlp(), x := torch.randn(5, 8))
    while fast._placement.direct._unseen:
        fast(x)
    fast(x)
    other = torch.randn(7, 8)
    with fast.record():
        assert placed_calls(fast, x, calls=2) == 2
    with torch.enable_grad():
        assert placed_calls(fast, x, calls=1) == 1
    assert placed_calls(fast, other, calls=3) == 0
    assert placed_calls(fast, other, calls=1) == 1
    assert fast._placement.direct._unseen == 0


def test_arguments_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sum(nn.Module):
        def forward(self, parts: list[torch.Tensor], scale: float = 1.0, bias: Any = None) -> torch.Tensor:
            total = torch.stack(parts).sum(0).relu().tanh() * scale
            return total if bias is None else total + bias["b"]

    using(monkeypatch, Folding(), fastest="none")
    model, parts = Sum(), [torch.randn(4, 8), torch.randn(4, 8)]
    fast = compiled(model, parts)
    decided(monkeypatch, 1.5)
    placed_calls(fast, parts)
    assert placed_calls(fast, parts) == 0
    bias = {"b": torch.randn(8)}
    for _ in range(6):
        assert torch.equal(fast(parts, scale=2.0, bias=bias), model(parts, 2.0, bias))
