"""Blocks of calls, and what other processes did to the cores meanwhile: `/proc/stat` less this process's own time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

QUIET = 0.15
"""Cores that others may have used during a block that counts."""


class Block(NamedTuple):
    """Median seconds of the calls of a block, and cores that others used meanwhile; 0 where the system is silent."""

    seconds: float
    others: float


def block(call: Callable[[], Any], least_s: float, least_calls: int = 3) -> Block:
    """One block of calls, one after the other."""
    times: list[float] = []
    start, busy, own = time.perf_counter(), _busy(), time.process_time()
    while len(times) < least_calls or time.perf_counter() - start < least_s:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    wall, used = time.perf_counter() - start, time.process_time() - own
    return Block(statistics.median(times), max(0.0, (_busy() - busy - used) / wall))


def settled(blocks: Sequence[Block], least: int = 3) -> Block:
    """The median of the quiet blocks; of the `least` quietest where those are fewer."""
    ordered = sorted(blocks, key=lambda each: each.others)
    quiet = [each for each in ordered if each.others <= QUIET]
    chosen = quiet if len(quiet) >= least else ordered[:least]
    return Block(*(statistics.median(column) for column in zip(*chosen)))


def _busy() -> float:
    """Seconds that all cores have been busy so far, stolen ones included."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, *rest = (int(field) for field in fields[:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
