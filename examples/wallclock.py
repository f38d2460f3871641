"""What several examples time by: the caller's wall clock, and one lock round all lanes to hold figures of overlap
against."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

import autopar
from autopar.runtime.lanes.emulated_clock import Clock
from autopar.runtime.record import LaneRecorder

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
    lock, own = threading.Lock(), threading.local()
    lane, begin, end = Clock.lane, LaneRecorder.begin, LaneRecorder.end

    def noted_lane(clock: Clock) -> Any:
        own.clock = lane(clock)
        return own.clock

    def locked_begin(recorder: LaneRecorder, index: int) -> None:
        lock.acquire()
        clock = getattr(own, "clock", None)
        if clock is not None:
            # On a declared clock too a step begins when it has got the lock.
            clock.now = max(clock.now, time.perf_counter() - clock.clock.origin)
        begin(recorder, index)

    def unlocked_end(recorder: LaneRecorder, index: int, *made: Any) -> None:
        end(recorder, index, *made)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        lock.release()

    with (
        patch.object(Clock, "lane", noted_lane),
        patch.object(LaneRecorder, "begin", locked_begin),
        patch.object(LaneRecorder, "end", unlocked_end),
        compiled.record(),
    ):
        yield
