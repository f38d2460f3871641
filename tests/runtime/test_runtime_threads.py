"""Threads of lanes that an exception is raised in from outside: a call says so or is right, and the next is right."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from runtime_cases import Case, mlp

from autopar.errors import RunError
from autopar.ir.graph import Ref
from autopar.runtime import worker as lanes
from autopar.runtime.worker import Worker


def throw(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Raise an exception in another thread, at whatever it does next."""
    # Another thread may have the number of one that has ended.
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


BEFORE: frozenset[threading.Thread] = frozenset()


def threads() -> list[threading.Thread]:
    found = (thread for thread in threading.enumerate() if thread.name.startswith("autopar "))
    return [thread for thread in found if thread not in BEFORE]


def within(seconds: float, call):
    """The result or error of a call, which must not take longer."""
    found: list = []

    def run() -> None:
        with torch.no_grad():
            try:
                found.append(call())
            except BaseException as error:
                found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Silence the report of the exception that ends a thread."""
    monkeypatch.setattr(threading, "excepthook", lambda args: None)


@pytest.fixture(autouse=True)
def others(monkeypatch):
    """Threads that earlier tests have left are not touched."""
    monkeypatch.setattr(sys.modules[__name__], "BEFORE", frozenset(threading.enumerate()))


@pytest.mark.parametrize("kind", [SystemExit, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("together", [False, True], ids=["one", "all"])
def test_an_idle_thread_that_is_killed(kind, together):
    """It notices when the next call wakes it: that call says so, or begins anew."""
    case, x, eager = mlp("cpu/0", "cpu/1", "emulated:0/0")
    executor = case.executor()
    right = within(60, lambda: executor([x])[0])
    for _ in range(3):
        for thread in threads()[: None if together else 1]:
            throw(thread, kind)
        found = within(60, lambda: executor([x])[0])
        assert isinstance(found, RunError) or torch.equal(found, right)
        if isinstance(found, RunError):
            assert "ended from outside" in str(found)
        assert torch.equal(within(60, lambda: executor([x])[0]), eager(x))
    executor.close()


@pytest.mark.parametrize("kind", [SystemExit, ValueError])
@pytest.mark.parametrize("lane", ["cpu/1", "emulated:0/0"])
def test_a_thread_that_is_killed_at_work(kind, lane):
    began, kill = threading.Event(), [True]

    def slow(x):
        began.set()
        for _ in range(200 if kill[0] else 1):
            time.sleep(0.01)
        return x + 1

    case = Case(outputs=("c",), calls={"slow": slow})
    case.task("cpu/0", "a", "aten.neg.default", Ref("x")).task(lane, "b", "aten.abs.default", Ref("a"))
    # The user's own code is at work in the caller's lane or another one; either waits for the other.
    case.task(lane, "s", "slow", Ref("b"))
    executor = case.task("cpu/0", "c", "aten.neg.default", Ref("s")).executor()
    x = torch.zeros(4, 4)

    def killer() -> None:
        began.wait()
        for thread in threads():
            throw(thread, kind)

    threading.Thread(target=killer, daemon=True).start()
    found = within(60, lambda: executor([x])[0])
    assert isinstance(found, (RunError, kind))
    kill[0] = False
    assert torch.equal(within(60, lambda: executor([x])[0]), -torch.ones(4, 4))
    executor.close()


def test_threads_killed_at_any_point(monkeypatch):
    """Calls in a row while somebody kills threads all the time: each is right or a RunError, and none hangs."""
    # pytest's hook, which runs in these threads, is no more immune to what is thrown than they are.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    case, x, eager = mlp("cpu/0", "cpu/1", "emulated:0/0")
    executor = case.executor()
    stop, right, wrong, lost = threading.Event(), eager(x), 0, 0

    def killer() -> None:
        turn = 0
        while not stop.is_set():
            for thread in threads():
                turn += 1
                throw(thread, (SystemExit, ValueError)[turn % 2])
                time.sleep(0.0003)
            time.sleep(0.002)

    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    try:
        for _ in range(150):
            found = within(60, lambda: executor([x])[0])
            lost += isinstance(found, RunError)
            wrong += not isinstance(found, RunError) and not torch.equal(found, right)
    finally:
        stop.set()
        thread.join()
    assert not wrong and lost
    # What was thrown last may still be on its way.
    assert any(
        isinstance(found, torch.Tensor) and torch.equal(found, right)
        for found in (within(60, lambda: executor([x])[0]) for _ in range(5))
    )
    executor.close()


@pytest.mark.parametrize("where", ["in a job", "before it", "dead"])
def test_a_job_is_lost_with_its_thread(where, monkeypatch):
    """The thread ends before or in a job, or where nothing of it can say so."""
    lost: list = []

    def die(box=None) -> None:
        raise SystemExit

    def ended() -> str:
        return worker.wait() or "over"

    worker = Worker("test")
    if where == "before it":
        monkeypatch.setattr(lanes, "_loop", die)
    worker.start()
    if where == "dead":
        monkeypatch.setattr(lanes, "PATIENCE_S", 0.01)
        worker._thread = SimpleNamespace(is_alive=lambda: False, join=lambda: None)
        worker.submit((lambda: time.sleep(0.2), lambda: lost.append(1)))
    else:
        worker.submit((die, lambda: lost.append(1)))
    assert within(10, ended) == "over" and lost and worker.gone
    worker.submit((lambda: None, lambda: lost.append(2)))
    assert lost[-1] == 2 and within(10, ended) == "over"
    worker.stop()
