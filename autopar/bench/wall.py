"""The caller's wall clock, and figures of scripts whose declared clock may be too fast for the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ..errors import LateError

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
            except LateError as error:
                print(f"once more on a clock {SLOWER} times as slow: {error}")
                return measure(**options, slower=SLOWER)
        except LateError as error:
            raise SystemExit(f"no figures from this run: {error}") from None
