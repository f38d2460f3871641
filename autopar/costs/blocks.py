"""Interleaved blocks of calls, and their disturbance by other processes."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..system.process import gc_paused
from .calibrate import threads

BLOCK_S = 0.1
"""Seconds of a block; one call if that takes longer."""
SETTLE_S = 0.005
"""Seconds of calls (one or more) dropped before each block, as caches hold the previous contestant's data."""
WAKE_S = 0.1
"""Limit on the seconds to wait before a block until the previous contestant's threads sleep: they spin for 10
ms after a call (OpenMP) or 50 ms (ONNX Runtime)."""
ELSEWHERE = 0.15
"""Number of cores that other processes may use during a block that counts."""
LEAST = 3
"""Undisturbed blocks needed for a median; at most this many times the requested rounds are run to get them."""
GROUPS = 8
"""Clock readings in a block."""


@dataclass(frozen=True)
class Block:
    """Mean seconds of some successive calls; `disturbed` is None if the system does not tell."""

    seconds: float
    calls: int
    disturbed: bool | None


def counted(blocks: Sequence[Block]) -> list[Block]:
    """Return the undisturbed blocks; all if these are too few."""
    quiet = [block for block in blocks if not block.disturbed]
    return quiet if len(quiet) >= LEAST else list(blocks)


def median(blocks: Sequence[Block]) -> float:
    """Return the median seconds of a call in the blocks that count."""
    return statistics.median(block.seconds for block in counted(blocks))


def disturbed(blocks: Sequence[Block]) -> bool:
    """Return True if a block that counts was disturbed."""
    return any(block.disturbed for block in counted(blocks))


def timed(
    turns: Mapping[str, tuple[Callable[[], Any], int]],
    rounds: int,
    limit_s: float,
    block_s: float | None = None,
    wake_s: float = WAKE_S,
    least: int = LEAST,
) -> dict[str, list[Block]]:
    """Time blocks of each contestant (a call and torch's number of threads) in an order that changes in each round.

    A block has at least `block_s` seconds (`BLOCK_S`), and begins after `wake_s` seconds at most. Timing ends when
    each contestant has `rounds` undisturbed blocks or `LEAST` × `rounds` in all, or, with `least` each, after
    `limit_s` seconds.
    """
    blocks: dict[str, list[Block]] = {name: [] for name in turns}
    order, shuffle = list(turns), random.Random(0).shuffle
    began = time.perf_counter()
    for turn in range(LEAST * rounds):
        shuffle(order)
        for name in order:
            if turn >= min(least, rounds) and time.perf_counter() - began > limit_s:
                return blocks
            if sum(not block.disturbed for block in blocks[name]) < rounds:
                blocks[name].append(_block(*turns[name], block_s or BLOCK_S, wake_s))
    return blocks


def _block(call: Callable[[], Any], count: int, block_s: float, wake_s: float) -> Block:
    _asleep(wake_s)
    with threads(count), gc_paused():
        dropped, start = 0, time.perf_counter()
        while not dropped or time.perf_counter() - start < SETTLE_S:
            call()
            dropped += 1
        _awaited()
        # The clock is read after every few calls, so that calls that get slower do not make the block long.
        group = max(1, int(block_s / GROUPS * dropped / (time.perf_counter() - start)))
        calls, took, before, start = 0, 0.0, elsewhere(), time.perf_counter()
        while took < block_s:
            for _ in range(group):
                call()
            _awaited()
            calls, took = calls + group, time.perf_counter() - start
        after = elsewhere()
    if before is None or after is None:
        return Block(took / calls, calls, None)
    # The system counts in ticks; one of them may be work of others just outside the block.
    return Block(took / calls, calls, after - before > ELSEWHERE * took + _TICK_S)


def _asleep(wake_s: float) -> None:
    """Wait until no thread of this process works, `wake_s` seconds at most."""
    step_s = 2e-3
    for _ in range(int(wake_s / step_s)):
        worked = time.process_time()
        time.sleep(step_s)
        if time.process_time() - worked < 0.2 * step_s:
            break


def _awaited() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def elsewhere(stat: Path = Path("/proc/stat")) -> float | None:
    """Return the seconds that this process's cores have worked for others, hypervisors included, relative to an
    arbitrary start; None if the system does not tell."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    try:
        rows = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; the first two include the time of guests.
    ticks = sum(int(row[i]) for row in rows if row[0] in cores for i in (1, 2, 3, 6, 7, 8))
    return ticks * _TICK_S - time.process_time() if ticks else None
