"""Tables of contestants that are timed in interleaved blocks of calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autopar.costs.blocks import counted, timed
from autopar.system.text import table

LIMIT_S = 120.0
"""Limit in seconds on the blocks of one table."""


def report(
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    base: str,
    scale: float = 1e3,
    unit: str = "ms",
    per: int = 1,
    beside: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Time `rounds` blocks of each contestant; print and return median, least and most seconds of a call ÷ `per`, and
    the ratio of the medians to that of `base`.

    scale: from seconds to `unit`.
    beside: further columns, each with its text for each contestant.
    """
    more = beside or {}
    turns = {name: (call, torch.get_num_threads()) for name, call in contestants.items()}
    samples = {
        name: [block.seconds / per for block in counted(blocks)]
        for name, blocks in timed(turns, rounds, LIMIT_S).items()
    }
    rows: list[tuple[str, ...]] = [("", f"median {unit}", "least", "most", f"÷ {base}", *more)]
    data: dict[str, Any] = {"samples_s": samples, "base": base}
    for name, times in samples.items():
        median = statistics.median(times)
        ratio = median / statistics.median(samples[base])
        figures = [f"{value * scale:.3f}" for value in (median, min(times), max(times))]
        rows.append((name, *figures, f"{ratio:.2f}", *(column[name] for column in more.values())))
        data[name] = {"median_s": median, "ratio": ratio}
    print(table(rows, right=range(1, len(rows[0]))), flush=True)
    return data
