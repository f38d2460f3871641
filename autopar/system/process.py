"""The process: its cores, its memory, and pauses of its garbage collector."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def cores() -> int:
    """Return the number of cores that this process may use, if the system tells, else of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


KEPT_BYTES, LARGEST_BYTES = 2**31 - 1, 2**25
"""Bytes of freed memory that stay in the process, and the size from which an allocation is returned to the
system when it is freed. Both are the most that `mallopt` accepts."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_MAPPINGS = 65_536
"""glibc's own limit on the allocations that are mapped, in effect outside `reserve`."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which users set these limits."""


@functools.cache
def keep_freed_memory() -> str:
    """Let glibc keep freed memory for later allocations, as torch's allocators of accelerators do; return the reason if
    it does not, "" if it does.

    Otherwise glibc returns the memory of activations and gradients to the system, often in every call, and
    each page is cleared and mapped again for its next use. Settings of the environment stay as they are.
    """
    if chosen := [name for name in _SETTINGS if name in os.environ]:
        return f"{chosen[0]} is set"
    try:
        library = ctypes.CDLL(None)
        _, mallopt = library.gnu_get_libc_version, library.mallopt
    except (OSError, TypeError, AttributeError):
        return "the C library is not glibc"
    done = mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
    return "" if done else "mallopt refuses"


def reserve(largest: int) -> None:
    """Let the main heap have half of `KEPT_BYTES` in one piece, if the `largest` allocation of a program, in bytes, is
    `LARGEST_BYTES` or more.

    It would otherwise be mapped anew in every call, unless freed memory happens to have room for it. Until it is
    used, a grown heap takes addresses, but no memory.
    """
    if largest < LARGEST_BYTES or keep_freed_memory():
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.mallopt(_MMAP_MAX, 0)
    try:
        library.free(library.malloc(KEPT_BYTES // 2))
    finally:
        library.mallopt(_MMAP_MAX, _MAPPINGS)


def return_freed_memory() -> None:
    """Collect cycles, and return freed memory to the system, where that is glibc's."""
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block: planning makes hardly any cycles, and each
    collection would visit every task of a large graph. It also works as a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
