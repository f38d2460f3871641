"""What several examples time by: the caller's wall clock, and one lock round all lanes to hold figures of overlap
against."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import autopar
from autopar.runtime.lane_threads import CallContext

SLOWER = 4
"""Times that the declared clock is slowed down when the first one was too fast for this machine."""


def wall(function: Callable[..., object], *inputs: Any) -> float:
    """Seconds by the caller's clock until everything is there."""
    start = time.perf_counter()
    function(*inputs)
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    return time.perf_counter() - start


def in_time(measure: Callable[..., dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The figures of a script's `measure`; where the clock was too fast for it, those with `slower=SLOWER`.

    Raises SystemExit with a sentence where that is too fast as well.
    """
    with torch.no_grad():
        try:
            try:
                return measure(**options)
            except autopar.LateError as error:
                print(f"once more on a clock {SLOWER} times as slow: {error}")
                return measure(**options, slower=SLOWER)
        except autopar.LateError as error:
            raise SystemExit(f"no figures from this run: {error}") from None


@contextmanager
def one_lock(compiled: autopar.Compiled) -> Iterator[None]:
    """Inside, each compute and each copy of `compiled` ends before the next begins, whichever lane it is in."""
    lock = threading.Lock()
    clocks: dict[str, Any] = {}
    clock, recorder = CallContext.clock, CallContext.recorder

    def shared_clock(call: Any, lane: str) -> Any:
        clocks[lane] = clock(call, lane)
        return clocks[lane]

    def locked_recorder(call: Any, lane: str) -> Any:
        return _Locked(recorder(call, lane), lock, lambda: clocks.get(lane), call.assembly.lanes[lane].drain)

    CallContext.clock, CallContext.recorder = shared_clock, locked_recorder  # type: ignore[method-assign,assignment]
    try:
        with compiled.record():
            yield
    finally:
        CallContext.clock, CallContext.recorder = clock, recorder  # type: ignore[method-assign]


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
