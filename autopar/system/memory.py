"""Words of memory, read all at once, and changes of dicts and classes that are seen in such words."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np


def reader(places: Sequence[tuple[int, int]]) -> Callable[[], bytes]:
    """Return a function that reads the bytes at some (address, number of bytes), one at least.

    All are read at once: one by one, each read would wait for the memory while caches hold other data. Call it only
    while the memory belongs to this process.
    """
    # The largest word that divides all sizes and addresses.
    word = math.gcd(8, *itertools.chain(*places))
    low, high = min(places)[0], max(map(sum, places))
    memory = np.frombuffer(memoryview((ctypes.c_ubyte * (high - low)).from_address(low)), f"u{word}")
    indices = np.array([(at - low) // word + part for at, size in places for part in range(size // word)])

    def read() -> bytes:
        words: np.ndarray[Any, Any] = memory[indices]
        return words.tobytes()

    return read


_CLASS, _ATTRIBUTES, _VERSION, _BYTES = 8, -24, 24, 8
"""Offsets of an object's class and of its `__dict__`, and of a dict's version in CPython, and the bytes of each. With
each change, a dict gets a version that no other dict has had."""


@functools.cache
def versioned() -> bool:
    """Return True if the version of a dict in memory tells each change, as in CPython 3.11 and 3.12.

    In 3.13, an attribute that its object holds itself leaves none, and 3.14 has no versions.
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13) or sys.maxsize < 2**32:
        return False

    class _Owner:
        def __init__(self) -> None:
            self.own = 0

    def version(item: dict[str, Any]) -> int:
        return ctypes.c_uint64.from_address(id(item) + _VERSION).value

    owner = _Owner()
    items = vars(owner)
    seen = [version(items)]
    for change in (
        lambda: setattr(owner, "own", 1), lambda: setattr(owner, "other", 1), lambda: delattr(owner, "other"),
        lambda: items.update(own=2), lambda: items.pop("own"), items.clear,
    ):  # fmt: skip
        change()
        seen.append(version(items))
    items.get("own")
    same = version(items) == seen[-1]
    typed = ctypes.c_void_p.from_address(id(owner) + _CLASS).value == id(_Owner)
    return same and typed and _attributed(owner) and len({*seen}) == len(seen)


def _attributed(item: Any) -> bool:
    """Return True if the `__dict__` of an object is where it is expected."""
    return ctypes.c_void_p.from_address(id(item) + _ATTRIBUTES).value == id(vars(item))


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


def unchanged(dicts: Iterable[Any], objects: Iterable[Any] = ()) -> Callable[[], bool] | None:
    """Return a function that returns True while dicts have the items, and objects the class and the `__dict__`, that
    they have now; None if that cannot be told, as of a subclass of dict. It keeps them alive."""
    found, owners = {id(item): item for item in dicts}, [*objects]
    if not found or not versioned() or not all(type(item) is dict for item in found.values()):
        return None
    if not all(map(_attributed, owners)):
        return None
    places = [(address + _VERSION, _BYTES) for address in found]
    places += [(id(item) + at, _BYTES) for item in owners for at in (_CLASS, _ATTRIBUTES)]
    read, held = reader(places), (found, owners)
    first = read()

    def same() -> bool:
        return bool(held) and read() == first

    return same
