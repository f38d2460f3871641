"""Choice of kernels: right or not used, never of old weights, the verdict remembered, eager until then."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, Late, alone, chosen, compiled, mlp, using
from torch import nn

import autopar
from autopar.costs.blocks import Block
from autopar.pipeline import kernel_choice
from autopar.pipeline.kernel_build import perturbed
from autopar.runtime.kernels import Compilation

HISTORIES = 200


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def changed(model: nn.Module, rng: random.Random) -> str:
    """Change weights or buffers in one of the ways that users have."""
    layer = rng.choice([model[0], model[3]])
    norm = model[1]
    way = rng.choice(["in place", "data", "data in place", "load", "replace", "buffer", "step", "nothing"])
    factor = 1 + rng.random()
    if way == "in place":
        layer.weight.mul_(factor)
    elif way == "data":
        layer.weight.data = layer.weight.data * factor
    elif way == "data in place":
        layer.bias.data.add_(factor)
    elif way == "load":
        model.load_state_dict(
            {
                name: value * factor if value.is_floating_point() else value
                for name, value in model.state_dict().items()
            }
        )
    elif way == "replace":
        layer.weight = nn.Parameter(layer.weight * factor)
    elif way == "buffer":
        norm.running_mean.add_(factor)
    elif way == "step":
        layer.weight.grad = torch.ones_like(layer.weight)
        torch.optim.SGD([layer.weight], lr=0.1, fused=rng.random() < 0.5).step()
        layer.weight.grad = None
    return way


@pytest.mark.slow
def test_no_answer_is_of_old_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    served = 0
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        model.load_state_dict(first)
        ways = []
        for _ in range(rng.randrange(1, 8)):
            ways.append(changed(model, rng))
            for _ in range(rng.choice([1, 1, 4])):
                torch.testing.assert_close(fast(x), model(x), msg=f"history {seed}: {ways}")
            if rng.random() < 0.3:
                fast.wait()
                served += chosen(fast) == "folding"
    assert served > 20
    assert folding.built > 20


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding("wrong", off=1e-3), Folding("right"), fastest="wrong")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    assert chosen(fast) == "eager"  # None is timed as faster, and the one that would be is out.
    assert "wrong: its answer differs from eager's by" in fast.explain()
    assert torch.equal(fast(x), model(x))


@pytest.mark.parametrize(("off", "serves"), [(1e-5, "folding"), (1e-2, "eager")])
def test_an_answer_near_zero_is_judged_by_those_of_other_inputs(
    monkeypatch: pytest.MonkeyPatch, off: float, serves: str
) -> None:
    using(monkeypatch, Folding(off=off), fastest="folding")
    model, x = nn.Linear(8, 1), torch.arange(8.0)[None]
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.copy_(1e-4 - model.weight @ perturbed([x], integers=False)[0][0])
    assert chosen(compiled(model, x)) == serves


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        (Folding("broken", error="no such\nthing"), "broken: RuntimeError: no such"),
        (Folding("absent", absent="not installed"), "absent: not installed"),
        (Folding("unable", able=False), "unable: it can do none of the tasks, of float32"),
    ],
    ids=["fails", "missing", "unable"],
)
def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, stack: Any, why: str) -> None:
    using(monkeypatch, stack, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    assert chosen(fast) == "folding"
    assert why in fast.explain()


def test_the_verdict_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Folding("first"), Folding("second")
    using(monkeypatch, first, second, fastest="second")
    model, x = mlp(), torch.randn(5, 8)
    assert chosen(compiled(model, x)) == "second"
    assert (first.built, second.built) == (1, 1)
    assert chosen(compiled(mlp(), x)) == "second"
    assert (first.built, second.built) == (1, 2)
    # Other sizes are another question.
    compiled(mlp(), torch.randn(6, 8))
    assert (first.built, second.built) == (2, 3)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(x) for tower in self.towers], 1)


@pytest.mark.slow
def test_the_fastest_library_goes_on_with_one_thread_and_on_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    threads: list[tuple[int, int]] = []

    class Noting(Folding):
        def load(self, work: Compilation) -> Callable[..., Any]:
            threads.append((work.threads, work.lanes))
            return super().load(work)

    using(monkeypatch, Noting(), fastest="folding, 2 lanes")
    model, x = Towers().eval(), torch.randn(512, 256)
    fast = compiled(model, x)
    assert chosen(fast) == "folding, 2 lanes"
    assert threads[:2] == [(2, 1), (1, 1)]
    assert set(threads[2:]) == {(1, 2)}
    torch.testing.assert_close(fast(x), model(x))
    # Another process builds that alone.
    threads.clear()
    assert chosen(compiled(Towers().eval(), x)) == "folding, 2 lanes"
    assert set(threads) == {(1, 2)}


def test_eager_serves_until_then_and_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="eager")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    assert torch.equal(fast(x), model(x))
    for _ in range(6):
        fast(x)
    fast.wait()
    assert chosen(fast) == "eager"
    assert torch.equal(fast(x), model(x))
    assert "kernels: eager" in fast.explain()


@pytest.mark.parametrize("fastest", ["first", "late"])
def test_what_is_fastest_so_far_serves_while_others_are_compiled(
    monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    late = Late("late")
    times = {"late": 0.5 if fastest == "late" else 1.5, "first": 1.0}
    using(monkeypatch, Folding("first"), late)
    monkeypatch.setattr(
        kernel_choice,
        "timed",
        lambda turns, *_: {name: [Block(times.get(name, 2.0), 1, False)] for name in turns},
    )
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto", example_inputs=(x,))
    assert not fast.wait(0)
    assert late.begun.wait(60)
    assert chosen(fast) == "first" and "kernels: first" in fast.explain()
    torch.testing.assert_close(fast(x), model(x))
    model[0].weight.mul_(2)
    torch.testing.assert_close(fast(x), model(x))
    late.may.set()
    assert fast.wait()
    torch.testing.assert_close(fast(x), model(x))
    fast = compiled(mlp(), x)
    assert chosen(fast) == fastest


def test_what_is_closed_compiles_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    late, last = Late("late"), Folding("last")
    using(monkeypatch, Folding("first"), late, last, fastest="first")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto", example_inputs=(x,))
    assert late.begun.wait(60)
    fast.close()
    late.may.set()
    fast.wait()
    assert chosen(fast) == "first" and last.built == 0
    assert "last: not tried, the compiled model was closed" in fast.explain()
    torch.testing.assert_close(fast(x), model(x))
    # What was not tried may yet win.
    assert chosen(compiled(mlp(), x)) == "first" and last.built == 1


def test_a_race_that_begins_as_the_process_ends_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its exit a process waits for these threads, but not for a compiler."""
    late = Folding("late")
    using(monkeypatch, late, fastest="late")
    fast = autopar.compile(mlp(), ["cpu"], kernels="auto")
    x = torch.randn(5, 8)
    fast(x)
    (executor,) = fast._placement.backend.tuned()
    sampled = kernel_choice.perturbed

    def ending(*given: Any) -> list[Any]:
        executor._choice.choose.end()
        return sampled(*given)

    monkeypatch.setattr(kernel_choice, "perturbed", ending)
    fast.wait()
    assert late.built == 0 and chosen(fast) == "eager"


def test_waiting_after_one_call_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    fast.wait()
    assert chosen(fast) == "folding"


@pytest.mark.parametrize("seconds", ["x", -1, float("nan"), float("inf"), True])
def test_only_a_time_can_be_waited_for(seconds) -> None:
    model = mlp()
    step = autopar.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), ["cpu"])
    for compiled_one in (autopar.compile(model, ["cpu"]), step):
        with pytest.raises(autopar.PlanError, match="is not a time"):
            compiled_one.wait(seconds)
        compiled_one.wait(0)


def test_eager_must_win_in_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Folding()
    using(monkeypatch, stack, fastest="eager")
    model, x = mlp(), torch.randn(5, 8)
    for built in (1, 2, 2):
        fast = compiled(model, x)
        assert chosen(fast) == "eager" and stack.built == built
    # New weights in the same process are no reason to race again.
    model[0].weight.mul_(2)
    for _ in range(6):
        fast(x)
    fast.wait()
    assert stack.built == 2


@pytest.mark.slow
def test_many_threads_while_kernels_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    expected = model(x)
    wrong: list[Any] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(60):
                if not torch.allclose(fast(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fast.wait()
    # Threads that come first at the same time may each have a graph captured.
    assert any(each.chosen is not None for each in fast._placement.backend.tuned())
    assert not wrong


def test_kernels_that_come_in_the_middle_of_a_call_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    (executor,) = fast._placement.backend.tuned()
    choice = executor._choice
    found, choice.chosen = choice.chosen, None
    run = executor.plain.run

    def late(*args: Any) -> Any:
        choice.chosen = found
        return run(*args)

    monkeypatch.setattr(executor.plain, "run", late)
    fast(x)
    assert executor.chosen is found


def test_what_is_recorded_names_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    with fast.record() as recording:
        fast(x)
    (span,) = recording.calls[0].spans
    assert span.called.endswith("tasks")
    assert 0 <= span.start < span.end
    assert "measured" in fast.explain()


def test_pytorch_answers_where_a_kernel_fails_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    folding.off = "no number"  # type: ignore[assignment]
    torch.testing.assert_close(fast(x), model(x))


def test_nothing_folds_weights_that_train_and_nothing_compiles_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    x = torch.randn(5, 8)
    with torch.enable_grad():
        model = mlp()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        for _ in range(5):
            fast(x).sum().backward()
    drawing = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    fast = autopar.compile(drawing, ["cpu"], kernels="auto")
    for _ in range(5):
        fast(x)
    fast.wait()
    assert folding.built == 0


_ENDING = """
import threading, torch, autopar
from autopar.pipeline import kernel_choice, options
from compilers import Folding, Idle

begun = threading.Event()

def timed(turns, rounds, limit_s, block_s, run):
    def block():
        begun.set()
        for call, _ in turns.values():
            call()

    while True:
        run(block)

kernel_choice.STACKS = options.STACKS = (Folding(),)
kernel_choice.timed, kernel_choice.CompilerProcess = timed, Idle
model, x = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval(), torch.randn(256, 256)
with torch.no_grad():
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for _ in range(4):
        fast(x)
assert begun.wait(60)
"""


@pytest.mark.slow
def test_a_process_that_ends_during_the_race_ends_well(tmp_path: Path) -> None:
    paths = [str(Path(autopar.__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]
    environment = {**os.environ, "AUTOPAR_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(
        [sys.executable, "-c", _ENDING], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


def test_names_of_kernels_are_checked() -> None:
    with pytest.raises(autopar.PlanError, match="kernels='fast' is not known; give one of 'eager', 'auto', "):
        autopar.compile(mlp(), ["cpu"], kernels="fast")  # type: ignore[arg-type]
