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
