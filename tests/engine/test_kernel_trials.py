"""Trials of kernels in the caller's own calls: who is slower goes, few or disturbed calls decide nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, chosen, compiled, mlp, using
from torch import nn

import autopar
from autopar.costs.blocks import Block
from autopar.pipeline import kernel_choice, options
from autopar.runtime import trial
from autopar.runtime.kernels import Compilation


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


class Slow(Folding):
    """Kernels that a race took for quick and that are not."""

    def load(self, work: Compilation) -> Callable[..., Any]:
        call = super().load(work)

        def slow(*tensors: torch.Tensor) -> Any:
            time.sleep(0.005)
            return call(*tensors)

        return slow


@pytest.mark.slow
def test_kernels_that_are_slower_in_the_callers_own_calls_go_again(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Slow(), fastest="folding")
    monkeypatch.setattr(trial, "CALLS", 4)
    monkeypatch.setattr(trial, "SPAN_S", 0.0)
    monkeypatch.setattr(trial, "TURN_S", 0.0)
    monkeypatch.setattr(trial, "SETTLE_S", 0.0)
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    assert chosen(fast) == "folding"
    for _ in range(12):
        torch.testing.assert_close(fast(x), model(x))
    assert chosen(fast) == "eager" and "in the caller's own calls" in fast.explain()
    # Another process tries once more, the next one does not.
    again = compiled(mlp(), x)
    assert chosen(again) == "folding"
    for _ in range(12):
        again(x)
    assert chosen(again) == "eager"
    assert chosen(compiled(mlp(), x)) == "eager"


@pytest.mark.slow
def test_the_next_fastest_has_its_trial_then(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Slow("quick"), Folding("sure"))
    seconds = {"quick": 1.0, "sure": 1.5, "eager": 2.0}
    monkeypatch.setattr(
        kernel_choice,
        "timed",
        lambda turns, *_: {name: [Block(seconds[name], 1, False)] for name in turns},
    )
    for name, value in (("CALLS", 4), ("SPAN_S", 0.0), ("TURN_S", 0.0), ("SETTLE_S", 0.0)):
        monkeypatch.setattr(trial, name, value)
    model, x = mlp(), torch.randn(5, 8)
    fast, served = compiled(model, x), []
    while len(served) < 40 and "sure" not in served:
        served.append(chosen(fast))
        torch.testing.assert_close(fast(x), model(x))
        fast.wait()
    assert [*dict.fromkeys(served)] == ["quick", "eager", "sure"]
    # Another process begins with what is best here.
    assert chosen(compiled(mlp(), x)) == "sure"


def test_another_trial_is_held_after_kernels_have_served(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    monkeypatch.setattr(trial, "AGAIN", ((3, 0.0),))
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    (executor,) = fast._placement.backend.tuned()
    fast(x)
    executor._trial.begin()
    monkeypatch.setattr(trial.Trial, "over", True)
    monkeypatch.setattr(trial.Trial, "ratio", 0.5)
    executor([x])
    assert chosen(fast) == "folding" and not executor._trial.on
    for _ in range(3):
        assert not executor._trial.on
        executor([x])
    assert executor._trial.on
    monkeypatch.setattr(trial.Trial, "ratio", 1.0)
    torch.testing.assert_close(executor([x])[0], model(x))
    assert chosen(fast) == "eager"


@pytest.mark.parametrize("longer", [False, True])
def test_few_short_calls_decide_nothing(monkeypatch: pytest.MonkeyPatch, longer: bool) -> None:
    monkeypatch.setattr(trial, "CALLS", 20)
    short, seconds, now = trial.Trial(), trial.SPAN_S / (10 if longer else 1e6), 0.0
    short.begin()
    for call in range(4 * trial.TURN * trial.CALLS):
        took = seconds * (1 + call % 2)
        short.note(short.candidate_next, now, now + took)
        now += took
    assert short.over == longer


@pytest.mark.parametrize("seconds", [1e-4, 2e-3, 0.05])
def test_a_turn_lasts_and_its_start_does_not_count(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(trial, "CALLS", 20)
    trying, now, start, turns = trial.Trial(), 0.0, 0.0, []
    trying.begin()
    while not trying.over and len(turns) < 100_000:
        candidate = trying.candidate_next
        began = not turns or turns[-1][0] != candidate
        turns.append((candidate, now, began))
        start = now if began else start
        spinning = began or now < start + trial.SETTLE_S
        took = seconds * (5 if spinning else 1) * (0.5 if candidate else 1)
        trying.note(candidate, now, now + took)
        now += took
    assert trying.ratio == pytest.approx(0.5)
    starts = [at for _, at, began in turns if began]
    assert all(after - at >= trial.TURN_S for at, after in pairwise(starts))


def test_weights_that_change_during_the_trial_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    monkeypatch.setattr(trial, "CALLS", 10)
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    for turn in range(6):
        torch.testing.assert_close(fast(x), model(x))
        if turn % 2:
            model[0].weight.mul_(1.5)


class Unhurried(Folding):
    """A compiler that reads weights as they are, and is not ready before the caller has gone on."""

    frozen = False

    def __init__(self, went_on: threading.Event) -> None:
        super().__init__("unhurried")
        self.went_on, self.begun = went_on, threading.Event()

    def load(self, work: Compilation) -> Callable[..., Any]:
        self.begun.set()
        assert self.went_on.wait(30)
        self.built += 1
        return torch.no_grad()(work.module)


@pytest.mark.slow
@torch.enable_grad()
@pytest.mark.parametrize("whole", [True, False], ids=["train_step", "own loop"])
def test_training_goes_on_while_its_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    went_on = threading.Event()
    stack = Unhurried(went_on)
    using(monkeypatch, stack, fastest="unhurried")
    model, other, criterion = mlp().train(), mlp().train(), nn.CrossEntropyLoss()
    optimizer, rival = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))

    def looped(model: Any, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    if whole:
        held: Any = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels="auto")
        step = held
    else:
        held = autopar.compile(model, ["cpu"], kernels="auto")
        step = looped(held, optimizer)
    expected = looped(other, rival)
    for turn in range(12):
        x, y = torch.randn(5, 8), torch.randint(4, (5,))
        torch.testing.assert_close(step(x, y), expected(x, y), rtol=1e-5, atol=1e-5)
        if turn == 8:
            assert stack.begun.wait(30)
        if turn == 10:
            went_on.set()
            held.wait()
    assert "unhurried" in held.serving and stack.built
    held.close()


def test_a_library_by_name_is_compiled_once_and_has_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    slow = Slow()
    using(monkeypatch, slow, fastest="folding, 1 thread")
    monkeypatch.setattr(kernel_choice, "named", lambda _: slow)
    monkeypatch.setattr(options, "named", lambda _: slow)
    for name, value in (("CALLS", 4), ("SPAN_S", 0.0), ("TURN_S", 0.0), ("SETTLE_S", 0.0)):
        monkeypatch.setattr(trial, name, value)
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x, "folding")
    for _ in range(20):
        torch.testing.assert_close(fast(x), model(x))
    assert (chosen(fast), slow.built) == ("folding", 1)
    assert "of eager's time" in fast.explain()
