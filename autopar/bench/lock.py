"""The baseline of figures of overlap: all lanes serialized by one lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.compiled import Compiled
from ..runtime.lane_threads import Call


@contextmanager
def one_lock(compiled: Compiled) -> Iterator[None]:
    """Inside, each compute and each copy of `compiled` ends before the next begins, whichever lane it is in."""
    lock = threading.Lock()
    clocks: dict[str, Any] = {}
    clock, recorder = Call.clock, Call.recorder

    def shared_clock(call: Any, lane: str) -> Any:
        clocks[lane] = clock(call, lane)
        return clocks[lane]

    def locked_recorder(call: Any, lane: str) -> Any:
        return _Locked(recorder(call, lane), lock, lambda: clocks.get(lane), call.assembly.lanes[lane].drain)

    Call.clock, Call.recorder = shared_clock, locked_recorder  # type: ignore[method-assign,assignment]
    try:
        with compiled.record():
            yield
    finally:
        Call.clock, Call.recorder = clock, recorder  # type: ignore[method-assign]


class _Locked:
    """A lane's recorder that holds the lock from the beginning of a step until the device has done it."""

    def __init__(self, inner: Any, lock: threading.Lock, clock: Any, drain: Any) -> None:
        self.inner, self.lock, self.clock, self.drain = inner, lock, clock, drain

    def begin(self, index: int) -> None:
        self.lock.acquire()
        clock = self.clock()
        if clock is not None:
            # On a declared clock too a step begins when it has got the lock.
            clock.now = max(clock.now, time.perf_counter() - clock.clock.origin)
        self.inner.begin(index)

    def end(self, index: int, *made: Any) -> None:
        self.inner.end(index, *made)
        self.drain()
        self.lock.release()
