"""Kernels that the first call builds and chooses: right or not used, never of old weights, the verdict remembered."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, Late, alone, mlp, using
from torch import nn

import autopar
from autopar.runtime import kernels
from autopar.runtime.thread_state import capture_lock as locked
from autopar.session import plain_model
from autopar.session.kernel_build import perturbed
from autopar.session.kernel_selection import REBUILDS

HISTORIES = 80


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
def test_answers_never_use_stale_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    x, served = torch.randn(5, 8), 0
    for seed in range(HISTORIES):
        if seed % 4 == 0:
            model = mlp()
            fast = autopar.compile(model, ["cpu"], kernels="auto")
        rng, ways = random.Random(seed), []
        for _ in range(rng.randrange(1, 8)):
            ways.append(changed(model, rng))
            for _ in range(rng.choice([1, 1, 4])):
                torch.testing.assert_close(fast(x), model(x), msg=f"history {seed}: {ways}")
            served += fast.serving == "folding"
    assert served > HISTORIES / 4
    assert len(folding.built) > HISTORIES / 4


def test_weights_that_change_are_folded_anew_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    folding, lifted = Folding(), Folding("lifted", folds=False)
    using(monkeypatch, folding, lifted, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    for rebuilt in range(REBUILDS):
        model[0].weight.mul_(1.5)
        assert torch.equal(fast(x), model(x)) and fast.serving == "eager"
        assert "eager serves until a call finds them unchanged" in fast.explain()
        assert torch.equal(fast(x), model(x)) and fast.serving == "folding"
        assert len(folding.built) == rebuilt + 2 and len(lifted.built) == 1
    for _ in range(3):
        model[0].weight.mul_(1.5)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
    # What does not fold the weights has raced anew, and lost.
    assert len(folding.built) == REBUILDS + 1 and len(lifted.built) == 2
    assert "it folds the weights, which change from call to call" in " ".join(fast.explain().split())
    assert fast.serving == "eager"


def test_kernels_of_weights_that_have_changed_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    folding, loser = Folding(), Folding("loser")
    using(monkeypatch, loser, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    old, lost = (weakref.ref(each.built.pop()[0]) for each in (folding, loser))
    gc.collect()
    assert old() is not None and lost() is None
    model[0].weight.mul_(1.5)
    fast(x)
    gc.collect()
    assert old() is None


def test_the_first_call_compares_chooses_and_answers_like_all_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    using(monkeypatch, Folding("wrong", off=1e-3), Folding("right", off=1e-7), fastest="right")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    first, threads = fast(x), threading.active_count()
    assert fast.serving == "right" and "its answer differs from eager's by" in " ".join(
        fast.explain().split()
    )
    assert re.search(r"right .* 0\.50  chosen", fast.explain("kernels"))
    for _ in range(5):
        assert torch.equal(fast(x), first)
    torch.testing.assert_close(first, model(x))
    assert threading.active_count() == threads


def test_preparing_builds_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    for fast in (autopar.compile(model, ["cpu"], kernels="auto", example_inputs=(x,)), None):
        fast = fast or autopar.compile(model, ["cpu"], kernels="folding")
        fast.prepare(x)
        built = len(folding.built)
        assert fast.serving == "folding" and built
        assert torch.equal(fast(x), model(x)) and len(folding.built) == built


@pytest.mark.parametrize(("off", "serves"), [(1e-5, "folding"), (1e-2, "eager")])
def test_an_answer_near_zero_is_judged_by_those_of_other_inputs(
    monkeypatch: pytest.MonkeyPatch, off: float, serves: str
) -> None:
    using(monkeypatch, Folding(off=off), fastest="folding")
    model, x = nn.Linear(8, 1), torch.arange(8.0)[None]
    model.weight.fill_(1.0)
    model.bias.copy_(1e-4 - model.weight @ perturbed([x], integers=False)[0][0])
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    assert fast.serving == serves


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (Folding("broken", error="no such\nthing"), "broken: RuntimeError: no such"),
        (Folding("absent", absent="not installed"), "absent: not installed"),
        (Folding("unable", able=False), "unable: it can do none of the tasks, of float32"),
    ],
    ids=["fails", "missing", "unable"],
)
def test_a_library_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, library: Any, why: str) -> None:
    using(monkeypatch, library, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    for wanted, serves in (("auto", "folding"), (library.name, "eager")):
        fast = autopar.compile(model, ["cpu"], kernels=wanted)
        assert torch.equal(fast(x), model(x))
        assert fast.serving == serves and why.partition(": ")[2] in " ".join(fast.explain().split())


def test_the_verdict_is_remembered_unless_other_work_has_disturbed_the_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(5, 8)
    first, second = Folding("first"), Folding("second")

    def calls(x: torch.Tensor, serves: str) -> tuple[int, int]:
        fast = autopar.compile(mlp(), ["cpu"], kernels="auto")
        fast(x)
        assert fast.serving == serves
        return len(first.built), len(second.built)

    using(monkeypatch, first, second, fastest="second", disturbed=True)
    assert calls(x, "second") == (1, 1)
    using(monkeypatch, first, second, fastest="second")
    assert calls(x, "second") == (2, 2)
    assert calls(x, "second") == (2, 3)
    # Other sizes are another question.
    assert calls(torch.randn(6, 8), "second") == (3, 4)
    using(monkeypatch, first, second, fastest="eager")
    assert calls(torch.randn(7, 8), "eager") == (4, 5)
    assert calls(torch.randn(7, 8), "eager") == (4, 5)


def test_the_plain_model_serves_where_whole_calls_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    folding, x = Folding(), torch.randn(5, 8)
    using(monkeypatch, folding, fastest="the model itself")
    for timed in (True, False):
        model = mlp()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        assert torch.equal(fast(x), model(x)) and fast.serving == "the model itself"
        if timed:
            monkeypatch.setattr(plain_model, "timed", None)  # a later process knows it
        placed = fast._placement.session.calls
        model[0].weight.mul_(2)
        assert torch.equal(fast(x), model(x)) and fast._placement.session.calls == placed
        with fast.record() as recording:
            fast(x)
        assert recording.calls
        assert "the model itself" in fast.explain()
    using(monkeypatch, folding, fastest="the model itself")
    # Other sizes, and calls with gradients, are placed.
    fast(torch.randn(3, 8))
    assert fast._placement.session.calls > placed
    placed = fast._placement.session.calls
    with torch.enable_grad():
        fast(x)
    assert fast._placement.session.calls > placed


class Stateful(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.layer(x)


def test_a_race_leaves_no_side_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="the model itself")
    model, x = Stateful(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for count in range(1, 4):
        fast(x)
        assert model.calls == count


@pytest.mark.slow
def test_calls_of_other_threads_are_served_while_kernels_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late("late")
    using(monkeypatch, late, fastest="late")
    model, x = mlp(), torch.randn(5, 8)
    fast, other = (autopar.compile(model, ["cpu"], kernels=kernels) for kernels in ("late", "eager"))
    with_dynamo = torch.compile(mlp(), backend="eager")
    for each in (other, with_dynamo):
        each(x)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    threads[0].start()
    assert late.begun.wait(60)
    for _ in range(5):
        torch.testing.assert_close(other(x), model(x))
        torch.testing.assert_close(with_dynamo(x), model(x))
    late.may.set()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and fast.serving == "late"


def test_a_call_waits_for_captures_of_other_threads_for_a_while_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may hold a lock for which they wait."""
    using(monkeypatch, Folding(), fastest="folding")
    monkeypatch.setattr(kernels, "PATIENCE_S", 0.1)
    model, x, may, holds = mlp(), torch.randn(5, 8), threading.Event(), threading.Event()

    def other() -> None:
        with locked():
            holds.set()
            may.wait(60)

    fast = autopar.compile(model, ["cpu"], kernels="folding")
    fast(x)
    thread = threading.Thread(target=other)
    thread.start()
    assert holds.wait(60)
    model[0].weight.mul_(1.5)
    for _ in range(3):
        assert torch.equal(fast(x), model(x)) and fast.serving == "eager"
    may.set()
    thread.join()
    assert torch.equal(fast(x), model(x)) and fast.serving == "folding"


def test_what_is_recorded_names_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    with fast.record() as recording:
        fast(x)
    (span,) = recording.calls[0].spans
    assert span.called.endswith("tasks") and 0 <= span.start < span.end
    assert "measured" in fast.explain()


def test_pytorch_answers_where_a_kernel_fails_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(x)
    folding.off = "no number"
    torch.testing.assert_close(fast(x), model(x))


def test_an_error_of_the_users_stays_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model = nn.Embedding(10, 4)
    fast = autopar.compile(model, ["cpu"], kernels="folding")
    with pytest.raises(IndexError, match="out of range"):
        fast(torch.tensor([3, 11]))
    ids = torch.tensor([3, 4])
    assert torch.equal(fast(ids), model(ids)) and fast.serving == "folding"


def test_nothing_folds_weights_that_train_and_nothing_compiles_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    x = torch.randn(5, 8)
    with torch.enable_grad():
        fast = autopar.compile(mlp(), ["cpu"], kernels="auto")
        fast(x).sum().backward()
    drawing = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    fast = autopar.compile(drawing, ["cpu"], kernels="auto")
    fast(x)
    assert not folding.built and "it draws random numbers" in fast.explain()


def test_names_of_kernels_are_checked() -> None:
    with pytest.raises(autopar.PlanError, match="kernels='fast' is not known; give one of 'eager', 'auto', "):
        autopar.compile(mlp(), ["cpu"], kernels="fast")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_worker_has_kernels_too() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="onnxruntime")
    fast(x)
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            right = all(torch.allclose(fast(x), model(x), atol=1e-5) for _ in range(3))
            os._exit(0 if right and fast.serving == "onnxruntime" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_SIGNALLED = """
import os, signal, torch, autopar

def end(module, inputs):
    os.kill(os.getpid(), signal.SIGTERM)

torch._dynamo.register_backend(end, name="ending")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
with torch.no_grad():
    autopar.compile(model, ["cpu"], kernels="onnxruntime")(torch.randn(4, 64))
    print("built", flush=True)
    autopar.compile(model, ["cpu"], kernels="ending")(torch.randn(4, 64))
"""


@pytest.mark.slow
def test_a_signal_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    temporary, kept = tmp_path / "temporary", tmp_path / "kept"
    temporary.mkdir()
    environment = {**os.environ, "AUTOPAR_CACHE": str(kept), "TMPDIR": str(temporary)}
    ran = subprocess.run(
        [sys.executable, "-c", _SIGNALLED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == -signal.SIGTERM and "built" in ran.stdout, ran.stderr
    # Inductor's cache is there, and a file of ONNX Runtime's.
    left = (each for each in temporary.rglob("*") if "torchinductor" not in str(each))
    assert sum(each.stat().st_size for each in left) < 1 << 12


_HANDLED = """
import ctypes, torch, autopar

class Stack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]

def signal_stack():
    stack = Stack()
    assert not ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack.address, stack.flags, stack.bytes

model, x, before = torch.nn.Linear(64, 64).eval(), torch.randn(4, 64), signal_stack()
with torch.no_grad():
    fast = autopar.compile(model, ["cpu"], kernels="openvino")
    fast(x)
    assert fast.serving == "openvino" and signal_stack() == before
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="as Linux hands signals to a thread")
def test_a_library_leaves_the_stack_for_handlers_of_signals(tmp_path: Path) -> None:
    """Python's own do not fit on that of OpenVINO: Ctrl-C would end the process."""
    pytest.importorskip("openvino")
    environment = {**os.environ, "AUTOPAR_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _HANDLED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
