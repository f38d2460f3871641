"""Scales of operator families: measured launch, and factor on the roofline, on a device.

Fitted to a family's samples by least absolute deviations, which single outliers do not affect.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..system import cache

VERSION = 1
"""Version of stored figures; other versions are ignored."""
MOST_EACH = 200
"""Limit on samples of a family: the latest."""
LAUNCHES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Launches tried, as shares of the seconds per launch of the family's shortest operation."""
LEAST_S, LEAST_FACTOR = 5e-7, 0.02
LEAST_BUSY_S = 1e-15
"""Seconds by the roofline below which an operation tells nothing about the factor."""

Scales: TypeAlias = tuple[tuple[str, float, float], ...]
"""(family, launch in seconds, factor), as in `Device.scales`."""


_Sample: TypeAlias = tuple[int, float, float]
"""A measured operation: its kernels, seconds by the roofline without launches, and measured seconds."""


def fitted(samples: Iterable[tuple[str, int, float, float]]) -> Scales:
    """Return the scale of each family from measured operations: (family, kernels, seconds by the roofline without
    launches, measured seconds)."""
    families: dict[str, list[_Sample]] = {}
    for family, kernels, busy_s, seconds in samples:
        families.setdefault(family, []).append((kernels, busy_s, seconds))
    return tuple((name, *_fit(found[-MOST_EACH:])) for name, found in sorted(families.items()))


def _fit(samples: Sequence[_Sample]) -> tuple[float, float]:
    """Return launch and factor of the samples of one family."""
    shortest = min(seconds / kernels for kernels, _, seconds in samples)
    best = (float("inf"), 0.0, 0.0)
    for share in LAUNCHES:
        launch = max(LEAST_S, share * shortest)
        factor = max(LEAST_FACTOR, _factor(samples, launch))
        error = sum(abs(launch * n + factor * busy - took) / took for n, busy, took in samples)
        best = min(best, (error, launch, factor))
    return best[1:]


def _factor(samples: Sequence[_Sample], launch: float) -> float:
    """Return the median of seconds beyond the launches ÷ the roofline's, weighted by the roofline's share."""
    ratios = sorted(
        ((took - launch * n) / busy, busy / took) for n, busy, took in samples if busy > LEAST_BUSY_S
    )
    half, so_far = sum(weight for _, weight in ratios) / 2, 0.0
    for ratio, weight in ratios:
        so_far += weight
        if so_far >= half:
            return ratio
    return statistics.fmean(ratio for ratio, _ in ratios) if ratios else 1.0


def kept(label: str) -> Scales:
    """Return the stored scales of a chip; none if there are none."""
    found = cache.load(_file()).get(label, [])
    if not isinstance(found, list) or not all(_is_scale(entry) for entry in found):
        return ()
    return tuple((str(name), float(launch), float(factor)) for name, launch, factor in found)


def keep(fits: Mapping[str, Scales]) -> None:
    """Store the scales of chips by label, in place of earlier ones."""
    path = _file()
    cache.store(path, {**cache.load(path), **fits})


def _is_scale(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[0], str)
        and all(map(cache.figure, entry[1:]))
    )


def _file() -> Any:
    return cache.file_for("scales", [VERSION, torch.__version__])
