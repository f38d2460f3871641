"""The host thread of a lane, `Worker`, and the `Gates` at which lanes wait for each other.

A worker holds no reference to its user, so that a dropped executor can be collected and stop its workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..ir.program import Program, Record, Wait

PATIENCE_S = 1.0
"""Seconds between checks that the awaited thread is still alive."""

Job: TypeAlias = tuple[Callable[[], None], Callable[[], None]]
"""A thread's job, which must not raise; and a function called, perhaps twice and by any thread, if the thread
ends before the job is done."""


class _Box:
    """State shared by a worker and its thread. Locks are binary semaphores: `go`: there is a job; `done`: it has
    ended. `gone`: the thread has ended, or is about to."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.done = threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.job: Job | None = None
        self.stop = self.gone = False

    def end(self) -> None:
        """Release all waiters, since the thread has ended."""
        # The order matters: `submit` sets the job before it reads `gone`, so one of the two sees the other.
        self.gone = True
        if self.job is not None:
            self.job[1]()
            self.job = None
        with contextlib.suppress(RuntimeError):
            self.done.release()


def _serve(box: _Box) -> None:
    # An exception may be raised in any thread from outside, at any point (PyThreadState_SetAsyncExc), even here.
    try:
        try:
            _loop(box)
        finally:
            box.end()
    finally:
        box.end()


def _loop(box: _Box) -> None:
    while True:
        box.go.acquire()
        if box.job is not None:
            box.job[0]()
        box.job = None
        # After an interrupt nobody takes `done`, so it may be free already.
        with contextlib.suppress(RuntimeError):
            box.done.release()
        if box.stop:
            return


class Worker:
    """A persistent daemon thread named `autopar <lane>` that does one job at a time.

    An interrupt may come at any point, so the thread starts only in `start`: its user can list it before.
    """

    def __init__(self, name: str) -> None:
        self._box = _Box()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_serve, args=(self._box,), name=f"autopar {name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def gone(self) -> bool:
        """True if its thread has ended by an exception raised in it, not by a stop."""
        return self._box.gone

    def submit(self, job: Job) -> None:
        """Start a job; the previous one must have been waited for."""
        self._box.job = job
        if self._box.gone:
            self._box.end()
        else:
            self._box.go.release()

    def wait(self) -> None:
        """Block until the submitted job has ended or is lost."""
        while not self._box.done.acquire(timeout=PATIENCE_S):
            if not self._thread.is_alive():
                self._box.end()

    def dismiss(self) -> None:
        """Let the thread end after its current job, without waiting. Safe in any state."""
        self._box.stop = True
        with contextlib.suppress(RuntimeError):
            self._box.go.release()

    def stop(self) -> None:
        """Stop the thread after its current job, and wait for its end. Safe in any state."""
        self.dismiss()
        # A garbage collection may run this on the very thread it stops; in a forked child there is no thread.
        if self._thread is not threading.current_thread() and self._pid == os.getpid():
            # A thread whose start was interrupted cannot be joined, but it ends all the same.
            with contextlib.suppress(RuntimeError):
                self._thread.join()


def stop_all(workers: list[Worker]) -> None:
    """Stop every worker of the list and empty it. If interrupted, call it again."""
    for worker in workers:
        worker.dismiss()
    while workers:
        workers[-1].stop()
        workers.pop()


def events(program: Program, kind: type[Record] | type[Wait]) -> Iterator[tuple[str, str]]:
    """Yield (event, lane) of each step of `kind`."""
    for lane in program.lanes:
        for step in lane.steps:
            if isinstance(step, Record | Wait) and isinstance(step, kind):
                yield step.event, lane.name


class _Cancelled(Exception):
    """Raised in a lane that must stop because another one failed."""


class Gates:
    """The locks of a program, closed until their event is recorded; and the failures of the current call, in
    order, as (lane, error)."""

    def __init__(self, program: Program) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self.recorder = dict(events(program, Record))
        self.number = {event: position for position, event in enumerate(self.recorder)}
        # For each event, the lock of each lane that waits for it.
        self._locks: dict[str, dict[str, threading.Lock]] = {event: {} for event in self.recorder}
        for event, lane in events(program, Wait):
            self._locks[event][lane] = threading.Lock()
            self._locks[event][lane].acquire()

    def names(self, lane: str) -> dict[str, Any]:
        """Return globals of a lane's code: `w3` waits for event 3, `r3_0` lets its first waiter pass, `f`
        lists the failures."""
        found: dict[str, Any] = {"f": self.failed, "Cancelled": _Cancelled}
        for event, locks in self._locks.items():
            number = self.number[event]
            if lane in locks:
                found[f"w{number}"] = locks[lane].acquire
            if lane == self.recorder[event]:
                for position, lock in enumerate(locks.values()):
                    found[f"r{number}_{position}"] = lock.release
        return found

    def wait(self, event: str) -> str:
        """Return the line of a Wait."""
        return f"if w{self.number[event]}() and f: raise Cancelled"

    def record(self, event: str) -> list[str]:
        """Return the lines of a Record."""
        return [f"r{self.number[event]}_{position}()" for position in range(len(self._locks[event]))]

    def fail(self, lane: str, error: BaseException) -> None:
        """Record a failure, then open every gate."""
        self.failed.append((lane, error))
        for locks in self._locks.values():
            for lock in locks.values():
                with contextlib.suppress(RuntimeError):
                    lock.release()
