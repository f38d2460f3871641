"""What one compiled model shares between its calls: concurrent callers, parameters written behind torch's back."""

from __future__ import annotations

import gc
import linecache
import os
import threading

import pytest
import torch
from torch import nn

import autopar
from autopar.checking import Reference
from autopar.runtime.crew import Crew
from autopar.runtime.lanes import Worker

DEVICES = ["cpu", "emulated:0"]


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
    init = Reference.__init__
    others: list[threading.Thread] = []
    errors: list[Exception] = []

    def other():
        try:
            with torch.no_grad():
                fast(x)
        except Exception as error:
            errors.append(error)

    def interrupted(self, *args):
        init(self, *args)
        others.append(threading.Thread(target=other))
        others[0].start()
        # Long enough for a call that does not wait for its turn.
        others[0].join(0.3)

    monkeypatch.setattr(Reference, "__init__", interrupted)
    with torch.no_grad():
        fast(x)
    others[0].join(30)
    assert not others[0].is_alive() and not errors
    assert torch.equal(model.calls, torch.full((8,), 2.0))
    fast.close()


def test_concurrent_callers_each_count_once():
    model = Counter()
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=None)
    start, errors = threading.Barrier(3), []

    def caller(rows: int) -> None:
        x = torch.randn(rows, 8)
        start.wait()
        try:
            with torch.no_grad():
                for _ in range(5):
                    fast(x)
        except Exception as error:
            errors.append(error)

    # Two callers of one signature and one of another.
    threads = [threading.Thread(target=caller, args=(rows,)) for rows in (4, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not errors
    assert torch.equal(model.calls, torch.full((8,), 15.0))
    fast.close()


class Blocked(nn.Module):
    """Waits in the midst of being captured, and tells when it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting() and x.dim() == 3:
            self.inside.set()
            self.go_on.wait(0.5)
        return self.layer(x).relu()


def test_a_call_during_the_capture_of_another_thread_is_not_taken_for_a_part_of_it():
    """torch says to all threads that it exports when one does."""
    model = Blocked()
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=None)
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = fast(x)

    def other() -> None:
        with torch.no_grad():
            fast(torch.randn(2, 3, 8))

    thread = threading.Thread(target=other)
    thread.start()
    assert model.inside.wait(60)
    with torch.no_grad():
        found = fast(x)
    model.go_on.set()
    thread.join(60)
    assert type(found) is torch.Tensor and torch.equal(found, expected)
    fast.close()


class Leaving(Blocked):
    """Says when it has left its capture too."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if torch.compiler.is_exporting():
            self.gone.set()
        return y


class Watching(nn.Module):
    """Tells whether it was called while another thread was within a capture."""

    def __init__(self, blocked: Leaving) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.seen: list[bool] = []
        self.__dict__["blocked"] = blocked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocked = self.__dict__["blocked"]
        self.seen.append(blocked.inside.is_set() and not blocked.gone.is_set())
        return self.layer(x)


@pytest.mark.parametrize("training", [False, True])
def test_no_model_is_checked_while_another_thread_captures_another(training):
    """torch replaces `nn.Module.__call__` for all threads while it traces."""
    model = Leaving()
    watching = Watching(model)
    fast = autopar.compile(model, ["cpu"], split=None)
    other = autopar.compile(watching, ["cpu"], split=None)
    x = torch.randn(4, 8)
    with torch.set_grad_enabled(training):
        other.prepare(x)
    del watching.seen[:]
    errors: list[Exception] = []

    def captured() -> None:
        try:
            with torch.no_grad():
                fast(torch.randn(2, 3, 8))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=captured)
    thread.start()
    assert model.inside.wait(60)
    with torch.set_grad_enabled(training):
        found = other(x)
    thread.join(60)
    assert not thread.is_alive() and not errors
    assert watching.seen and not any(watching.seen)
    assert torch.allclose(found, watching.layer(x))
    fast.close(), other.close()


class Around(nn.Module):
    """Calls a compiled model; as one task where it may not be traced."""

    def __init__(self, inner, opaque: bool) -> None:
        super().__init__()
        self.__dict__["inner"], self.opaque = inner, opaque
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.opaque and float(x.sum()) > 1e9:
            return x
        return self.inner(self.layer(x)) * 2


@pytest.mark.parametrize("opaque", [False, True])
def test_threads_with_models_around_models_do_not_wait_for_each_other_for_ever(opaque):
    inner = autopar.compile(nn.Linear(8, 8), DEVICES, policy="round_robin", split=None)
    outer = autopar.compile(Around(inner, opaque), DEVICES, policy="round_robin", split=None)
    start, errors = threading.Barrier(4), []

    def caller(model, rows: int) -> None:
        start.wait()
        try:
            with torch.no_grad():
                for more in range(2):
                    assert model(torch.randn(rows + more, 8)).shape == (rows + more, 8)
        except Exception as error:
            errors.append(error)

    work = [(inner, 3), (outer, 3), (outer, 7), (inner, 7)]
    threads = [threading.Thread(target=caller, args=args, daemon=True) for args in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    # What is kept as written runs outside the turn, where torch's tracing in another thread may meet it.
    assert opaque or not errors
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
        with fast._session._turn():
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


@torch.no_grad()
def test_refresh_after_writes_that_leave_no_trace():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    fast = autopar.compile(model, DEVICES, pins={"2": "emulated:0"}, split=None)
    x = torch.randn(4, 8)
    fast(x), fast(x[:2])
    model[2].weight.detach().numpy()[:] *= 3
    fast.refresh()
    # Every signature has copies of its own.
    torch.testing.assert_close(fast(x), model(x))
    torch.testing.assert_close(fast(x[:2]), model(x[:2]))
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
def test_a_layer_that_is_an_argument_is_captured_once(training):
    one, two, three = (nn.Linear(4, 4) for _ in range(3))
    fast = autopar.compile(weighed, DEVICES)
    plans = []
    with torch.set_grad_enabled(training):
        for pair in ((one, two), (one, two), (two, three), (one, two), (one, two)):
            torch.testing.assert_close(fast(*pair), weighed(*pair))
            plans.append(fast.plan)
        assert plans[0] is plans[1] is plans[3] is plans[4], "the same layers, planned again"
        assert plans[2] is not plans[0]
        # One tensor in two places is one gradient, where they were two.
        two.weight = one.weight
        answer = fast(one, two)
        torch.testing.assert_close(answer, weighed(one, two))
        if training:
            answer.backward()
            torch.testing.assert_close(one.weight.grad, 2 * one.weight.detach())
        one.eval()
        fast(one, two)
        assert fast.plan is not plans[0], "what a layer's forward reads has changed"
    fast.close()


@pytest.mark.parametrize("when", ["start", "submit", "abandon"])
@torch.no_grad()
def test_an_interrupt_leaves_no_thread_behind(monkeypatch, when):
    """It comes as a thread has just started, as a job has just been given, or twice in a row."""

    def threads() -> int:
        return sum(thread.name.startswith("autopar ") for thread in threading.enumerate())

    gc.collect()
    before = threads()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    fast = autopar.compile(model, DEVICES, pins={"2": "emulated:0"}, split=None)
    x = torch.randn(4, 8)
    if when != "start":
        fast(x)
    change = {
        "start": ((Worker, "start"),),
        "submit": ((Worker, "submit"),),
        "abandon": ((Worker, "submit"), (Crew, "_abandon")),
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
