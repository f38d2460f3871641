"""Interleaved timing: A B C A B C …, so that a drift of the machine meets all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from autopar.system.text import table


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    calls: int = 1,
) -> dict[str, list[float]]:
    """Seconds of a call of each contestant in each round, of `calls` in a row, after one round to warm up."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            start = clock()
            for _ in range(calls):
                run()
            samples[name].append((clock() - start) / calls)
    return {name: seconds[1:] for name, seconds in samples.items()}


def report(
    samples: Mapping[str, list[float]],
    *,
    base: str,
    scale: float = 1e3,
    unit: str = "ms",
    per: int = 1,
    beside: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Print median, least, most, and the median of the ratios round by round to `base`; the same as data.

    beside: further columns, each with its text for each name.
    """
    more = beside or {}
    rows: list[tuple[str, ...]] = [("", f"median {unit}", "least", "most", f"÷ {base}", *more)]
    data: dict[str, Any] = {"samples_s": dict(samples), "base": base}
    for name, times in samples.items():
        ratio = statistics.median(time / other for time, other in zip(times, samples[base]))
        shown = [value * scale / per for value in (statistics.median(times), min(times), max(times))]
        texts = (column[name] for column in more.values())
        rows.append((name, *(f"{value:.3f}" for value in shown), f"{ratio:.2f}", *texts))
        data[name] = {"median_s": statistics.median(times), "ratio": ratio}
    print(table(rows, right=range(1, len(rows[0]))), flush=True)
    return data
