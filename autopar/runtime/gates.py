"""The gates of a program, at which its lanes wait for each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ..ir.program import Program, Record, Wait


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
