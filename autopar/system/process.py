"""The process: the cores it may run on, pauses of its cyclic garbage collector, and its state as others see it."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal


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


def identity() -> dict[str, Any]:
    """This process for others to know it by: `host`, `pid`, the `space` that its pid is of, and when it was `born`.

    The last two are "" where the system does not tell.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "space": _space(),
        "born": _stat(os.getpid())[1],
    }


def state(known: Mapping[str, Any]) -> Literal["elsewhere", "running", "stopped", "dead"]:
    """The state of the process of an `identity`; "elsewhere" where it cannot be seen from here."""
    if not known["space"] or known["space"] != _space():
        return "elsewhere"
    letter, born = _stat(known["pid"])
    if born != known["born"] or letter in "ZX":
        return "dead"
    return "stopped" if letter in "Tt" else "running"


def _space() -> str:
    """The boot of this machine and the namespace of pids, "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """The letter of a process's state, and the tick at which it began; "X" and "" where there is none."""
    try:
        # The name, in brackets, may hold blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]
