"""Words of memory, read all at once, and calls that are made now and then."""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

Place: TypeAlias = tuple[int, int]
"""An address, and a number of bytes."""
_AT_ONCE = 500
"""Words that numpy reads without letting other threads of Python run, which might free the memory meanwhile."""


def word(address: int) -> int:
    """Return the eight bytes at an address as a number."""
    return ctypes.c_uint64.from_address(address).value


def constant(*groups: Sequence[Place], owners: Any = None) -> Callable[[], bool]:
    """Return a function that returns True while the bytes at all places are as now. It keeps `owners` alive.

    A group, which has one place at least, is read only if those before it are as they were, and no other thread of
    Python runs in between. A group is read all at once: one by one, each read would wait for the memory while caches
    hold other data. Call it only while the memory belongs to this process.
    """
    memories, parts = list[Any](), list[Any]()
    for places in groups:
        # The largest word that divides all sizes and addresses.
        size = math.gcd(8, *itertools.chain(*places))
        low, high = min(places)[0], max(map(sum, places))
        memory = np.frombuffer(memoryview((ctypes.c_ubyte * (high - low)).from_address(low)), f"u{size}")
        indices = np.array(
            [(at - low) // size + part for at, total in places for part in range(total // size)]
        )
        for at in range(0, len(indices), _AT_ONCE):
            memories.append(memory)
            parts.append(indices[at : at + _AT_ONCE])
    found = [memory[part].tobytes() for memory, part in zip(memories, parts)]

    def same(_: Any = owners) -> bool:
        # Python lets another thread run only between operations of its own code, of which there are none here.
        return all(map(operator.eq, map(_bytes, map(operator.getitem, memories, parts)), found))

    return same


_bytes: Callable[[Any], bytes] = np.ndarray.tobytes

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
