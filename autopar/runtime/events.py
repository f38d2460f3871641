"""Hand-offs between lanes: one lock for each event and lane that waits for it, used as a binary semaphore.

`Record` releases the locks of its event, `Wait` acquires its lane's. Each is taken and given once a call, so
nothing has to be reset between calls. A failed call opens every gate; whoever passes one then sees the
failure and stops.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ..ir.program import Program, Record, Wait
from .slots import events


class Cancelled(Exception):
    """Raised in a lane that has to stop because another one failed."""


class Gates:
    """The locks of a program and the failures of the current call, as (lane, error), the first one first."""

    def __init__(self, program: Program) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        for event, lane in events(program, Wait):
            self._locks[event, lane] = threading.Lock()
        self.recorder = dict(events(program, Record))
        self.waiters: dict[str, list[str]] = {event: [] for event in self.recorder}
        for event, lane in self._locks:
            self.waiters[event].append(lane)
        self.number = {event: position for position, event in enumerate(self.recorder)}
        self.close()

    def names(self, lane: str) -> dict[str, Any]:
        """Globals of a lane's code: `w3` passes event 3, `r3_0` lets its first waiter pass, `f` are the
        failures.
        """
        found: dict[str, Any] = {"f": self.failed, "Cancelled": Cancelled}
        for event, waiters in self.waiters.items():
            number = self.number[event]
            if lane in waiters:
                found[f"w{number}"] = self._locks[event, lane].acquire
            if lane == self.recorder[event]:
                for position, waiter in enumerate(waiters):
                    found[f"r{number}_{position}"] = self._locks[event, waiter].release
        return found

    def wait(self, event: str) -> str:
        """The line of a Wait."""
        return f"if w{self.number[event]}() and f: raise Cancelled"

    def record(self, event: str) -> list[str]:
        """The lines of a Record."""
        return [f"r{self.number[event]}_{position}()" for position in range(len(self.waiters[event]))]

    def fail(self, lane: str, error: BaseException) -> None:
        """Note a failure, then open every gate."""
        self.failed.append((lane, error))
        for lock in self._locks.values():
            with contextlib.suppress(RuntimeError):
                lock.release()

    def close(self) -> None:
        """Every gate shut and no failure, as before a call. Only while no lane is at work."""
        for lock in self._locks.values():
            lock.acquire(blocking=False)
        self.failed.clear()
