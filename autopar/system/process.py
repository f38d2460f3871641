"""The process: the cores it may run on, and pauses of its cyclic garbage collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


def cores() -> int:
    """The number of cores of the host that this process may use, where the system tells, else of all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def uncollected() -> Iterator[None]:
    """Without looking for cyclic garbage, which planning hardly makes and which would have every task of a large graph
    looked at again and again. Also a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
