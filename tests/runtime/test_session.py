"""What one compiled model shares between its calls: concurrent callers, parameters written behind torch's back."""

from __future__ import annotations

import gc
import linecache
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import region
from autopar.runtime.lane_threads import Crew
from autopar.session.eager_check import Eager

pytestmark = pytest.mark.slow

DEVICES = ["cpu", "emulated:0"]


def at_once(*calls: Callable[[], object]) -> list[Exception]:
    """Make calls without gradients in threads that begin together; return the errors of those that raise."""
    start, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            with torch.no_grad():
                call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    return errors


class Counter(nn.Module):
    """Each call reads what the call before left: a buffer, and the state of the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return nn.functional.dropout(self.layer(x), 0.5, True) + self.calls


def test_a_call_does_not_come_between_a_check_and_its_run(monkeypatch):
    """Eager's answer, on snapshots that are put back, and the run it is held against are one turn."""
    model = Counter()
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=None)
    x = torch.randn(4, 8)
    init = Eager.__init__
    others: list[threading.Thread] = []
    errors: list[Exception] = []

    def other():
        try:
            with torch.no_grad():
                fast(x)
        except Exception as error:
            errors.append(error)

    def interrupted(self, *args, **more):
        init(self, *args, **more)
        if others:
            # torch.compile captures again in a thread with another number of threads.
            return
        others.append(threading.Thread(target=other))
        others[0].start()
        # Long enough for a call that does not wait for its turn.
        others[0].join(0.3)

    monkeypatch.setattr(Eager, "__init__", interrupted)
    with torch.no_grad():
        fast(x)
    others[0].join(30)
    assert not others[0].is_alive() and not errors
    assert torch.equal(model.calls, torch.full((8,), 2.0))
    fast.close()


@pytest.mark.parametrize("training", [False, True])
def test_calls_while_another_thread_captures_are_right(monkeypatch, training):
    """Of the plain model, of the compiled one at known sizes, and of another compiled model."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=None)
    other = autopar.compile(nn.Linear(8, 8), ["cpu"])
    inside, go_on, trace = threading.Event(), threading.Event(), region.trace
    errors: list[Exception] = []

    def blocked(*args, **kwargs):
        inside.set()
        go_on.wait(60)
        return trace(*args, **kwargs)

    def captured() -> None:
        try:
            with torch.set_grad_enabled(training):
                y = torch.randn(2, 3, 8)
                assert torch.allclose(fast(y), model(y))
        except Exception as error:
            errors.append(error)

    with torch.set_grad_enabled(training):
        expected = fast(x)
        other(x)
        with monkeypatch.context() as patch:
            patch.setattr(region, "trace", blocked)
            thread = threading.Thread(target=captured)
            thread.start()
            assert inside.wait(60)
            found = fast(x), model(x), other(x)
            go_on.set()
            thread.join(60)
    assert not thread.is_alive() and not errors
    assert torch.equal(found[0], expected) and torch.allclose(found[1], expected)
    assert all(type(each) is torch.Tensor for each in found)
    fast.close(), other.close()


class Around(nn.Module):
    """Calls a compiled model."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.__dict__["inner"] = inner
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.layer(x)) * 2


def test_threads_with_models_around_models_do_not_wait_for_each_other_for_ever():
    inner = autopar.compile(nn.Linear(8, 8), DEVICES, policy="round_robin", split=None)
    outer = autopar.compile(Around(inner), DEVICES, policy="round_robin", split=None)

    def caller(model, rows: int) -> None:
        for more in range(2):
            assert model(torch.randn(rows + more, 8)).shape == (rows + more, 8)

    work = [(inner, 3), (outer, 3), (outer, 7), (inner, 7)]
    assert not at_once(*(partial(caller, *each) for each in work))
    inner.close(), outer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_is_in_a_call_leaves_the_child_free_to_call():
    model = Counter()
    fast = autopar.compile(model, ["cpu"], split=None, check="never")
    x = torch.randn(4, 8)
    with torch.no_grad():
        fast(x)
    taken, done = threading.Event(), threading.Event()

    def holder() -> None:
        with fast._placement.session.lock:
            taken.set()
            done.wait(30)

    thread = threading.Thread(target=holder)
    thread.start()
    taken.wait(30)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        worker = threading.Thread(target=lambda: torch.no_grad()(fast)(x), daemon=True)
        worker.start()
        worker.join(20)
        os._exit(int(worker.is_alive()))
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    fast.close()


@pytest.mark.parametrize("write", ["numpy", "data", "one element", "fused step"])
@torch.no_grad()
def test_writes_that_leave_no_trace(write):
    """Those to whole tensors are seen by samples in every signature, an optimizer's in any case, others after
    `refresh`."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    fast = autopar.compile(model, DEVICES, pins={"2": "emulated:0"}, split=None)
    x, weight = torch.randn(4, 8), model[2].weight
    fast(x), fast(x[:2])
    for factor in (3, 0.5):
        if write == "numpy":
            weight.detach().numpy()[:] *= factor
        elif write == "data":
            weight.data.mul_(factor)
        elif write == "fused step":
            weight.grad = torch.zeros_like(weight)
            weight.grad[1, 3] = factor
            torch.optim.SGD([weight], lr=1.0, fused=True).step()
        else:
            weight.data[1, 3] *= factor
            fast.refresh()
        for each in (x, x[:2]):
            torch.testing.assert_close(fast(each), model(each))
    fast.close()


@pytest.mark.parametrize(
    ("training", "through"), [(False, "parameter"), (True, "parameter"), (False, "data")]
)
def test_parameters_of_other_shapes_are_planned_anew(training, through):
    model = nn.Linear(4, 4)
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=2)
    x = torch.randn(6, 4)
    with torch.set_grad_enabled(training):
        fast(x), fast(x)
        for rows in (8, 2):
            made = {"weight": torch.randn(rows, 4), "bias": torch.randn(rows)}
            for name, tensor in made.items():
                if through == "data":
                    getattr(model, name).data = tensor
                else:
                    setattr(model, name, nn.Parameter(tensor))
            if through == "data":
                fast.refresh()
            output = fast(x)
            torch.testing.assert_close(output, model(x))
            assert fast.plan.costed.graph.value["weight"].shape == (rows, 4)
            if training:
                wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
                output.square().sum().backward()
                for parameter, gradient in zip(model.parameters(), wanted):
                    torch.testing.assert_close(parameter.grad, gradient)
    fast.close()


def test_parameters_of_the_same_shapes_are_not_planned_anew():
    model = nn.Linear(4, 4)
    fast = autopar.compile(model, "cpu")
    x = torch.randn(6, 4)
    fast(x)
    plan = fast.plan
    model.weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(fast(x), model(x))
    assert fast.plan is plan
    fast.close()


def weighed(layer: nn.Linear, other: nn.Linear) -> torch.Tensor:
    return (layer.weight * other.weight).sum()


@pytest.mark.parametrize("training", [False, True])
def test_layers_that_are_arguments_are_captured_once(training):
    one, two, three = (nn.Linear(4, 4) for _ in range(3))
    fast = autopar.compile(weighed, DEVICES)
    plans = []
    with torch.set_grad_enabled(training):
        for pair in ((one, two), (one, two), (two, three), (one, two), (three, three)):
            torch.testing.assert_close(fast(*pair), weighed(*pair))
            plans.append(fast.plan)
        assert plans[0] is plans[1] is plans[2] is plans[3], "the same kind of layers, planned again"
        # One tensor in two places is one gradient, where they were two.
        two.weight = one.weight
        answer = fast(one, two)
        torch.testing.assert_close(answer, weighed(one, two))
        if training:
            answer.backward()
            torch.testing.assert_close(one.weight.grad, 2 * one.weight.detach())
    fast.close()


def test_threads_that_give_other_layers_do_not_meet():
    layers = [nn.Linear(4, 4) for _ in range(4)]
    fast = autopar.compile(weighed, DEVICES, policy="round_robin", check="never")

    def caller(number: int) -> None:
        pair = layers[number], layers[number - 1]
        for _ in range(20):
            assert torch.allclose(fast(*pair), weighed(*pair))

    with torch.no_grad():
        fast(layers[0], layers[1])
    assert not at_once(*(partial(caller, number) for number in range(4)))
    fast.close()


@pytest.mark.parametrize("when", ["submit", "abandon"])
@torch.no_grad()
def test_an_interrupt_leaves_no_thread_behind(monkeypatch, when):
    """It comes as a thread has just been given a job, or twice in a row."""

    def threads() -> int:
        return sum(thread.name.startswith("autopar ") for thread in threading.enumerate())

    gc.collect()
    before = threads()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    fast = autopar.compile(model, DEVICES, pins={"2": "emulated:0"}, split=None)
    x = torch.randn(4, 8)
    fast(x)
    change = {
        "submit": ((ThreadPoolExecutor, "submit"),),
        "abandon": ((ThreadPoolExecutor, "submit"), (Crew, "_abandon")),
    }

    def interrupted(function):
        def call(*args):
            if function.__name__ != "_abandon":
                function(*args)
            raise KeyboardInterrupt

        return call

    with monkeypatch.context() as patch:
        for owner, name in change[when]:
            patch.setattr(owner, name, interrupted(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            fast(x)
    torch.testing.assert_close(fast(x), model(x))
    fast.close()
    assert threads() <= before


@torch.no_grad()
def test_the_text_of_generated_code_goes_with_it():
    def texts() -> int:
        gc.collect()
        return sum("autopar program" in name for name in linecache.cache)

    before = texts()
    fast = autopar.compile(nn.Linear(8, 8), ["cpu"])
    fast(torch.randn(4, 8))
    assert texts() > before
    fast.close()
    del fast
    assert texts() == before
