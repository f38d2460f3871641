"""Words of memory, read all at once, and calls that are made now and then."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

Place: TypeAlias = tuple[int, int]
"""An address, and a number of bytes."""
_AT_ONCE = 500
"""Words that numpy reads without letting other threads of Python run, which might free the memory meanwhile."""


def constant(places: Sequence[Place], owners: Any = None) -> Callable[[], bool]:
    """Return a function that returns True while the bytes at some places, one at least, are as now. It keeps `owners`
    alive.

    All are read at once: one by one, each read would wait for the memory while caches hold other data. Call it only
    while the memory belongs to this process.
    """
    # The largest word that divides all sizes and addresses.
    word = math.gcd(8, *itertools.chain(*places))
    low, high = min(places)[0], max(map(sum, places))
    memory = np.frombuffer(memoryview((ctypes.c_ubyte * (high - low)).from_address(low)), f"u{word}")
    indices = np.array([(at - low) // word + part for at, size in places for part in range(size // word)])
    parts = [indices[at : at + _AT_ONCE] for at in range(0, len(indices), _AT_ONCE)]
    found = [memory[part].tobytes() for part in parts]

    def same_words(_: Any = owners) -> bool:
        return bool(memory[indices].tobytes() == found[0])

    def same(_: Any = owners) -> bool:
        return all(memory[part].tobytes() == known for part, known in zip(parts, found))

    return same if len(parts) > 1 else same_words


_PAUSE = 100
"""Pause after a call by `seldom`, as a multiple of its seconds."""
_T = TypeVar("_T")


def seldom() -> Callable[[Callable[[], _T]], _T | None]:
    """Return a function that makes calls, but only now and then, so that they take a hundredth of the time: some models
    change a dict in each of theirs. In the pause after a call, it returns None."""
    due = 0.0

    def made(make: Callable[[], _T]) -> _T | None:
        nonlocal due
        began = time.monotonic()
        if began < due:
            return None
        found = make()
        ended = time.monotonic()
        due = ended + _PAUSE * (ended - began)
        return found

    return made
