"""The grid of docs/distributed.md: each model on two and on four ranks, for 50 steps, in each arrangement of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

MODELS = ("mlp", "cnn", "gpt")
RANKS = (2, 4)


def grid(
    arrangement: str, case: Callable[[str, int], tuple[Any, ...]], models: Sequence[str] = MODELS
) -> list[Any]:
    """The parameters `case(model, ranks)` of each cell of one arrangement, marked `grid`."""
    return [
        pytest.param(*case(model, count), marks=pytest.mark.grid, id=f"{arrangement}-{model}-{count}")
        for model in models
        for count in RANKS
    ]


def apart(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of losses to the expected ones."""
    return max(abs(ours - wanted) / abs(wanted) for ours, wanted in zip(found, expected, strict=True))
