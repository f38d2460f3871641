"""Cases in which values of several parameters meet by turns, where all combinations would take minutes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def by_turns(names: str, *values: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with as many cases as the parameter of most values has; each value of each occurs."""
    axes = [[*axis] for axis in values]
    count = max(map(len, axes))
    # Shifted by one in each round: two parameters of four and two values meet in more than two ways.
    rows = [tuple(axis[(at + at // len(axis)) % len(axis)] for axis in axes) for at in range(count)]
    return pytest.mark.parametrize(names.split(", "), rows)
