"""Valid JSON with something in it changed at random."""

from __future__ import annotations

import copy
import random
from typing import Any


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, -0.0, 0.5, 1.5, 1e308, 1e30, 1e-30, 5e-324, 1e-320, 10**30, 10**31, 10**400,
    float("nan"), float("inf"), float("-inf"), "", "\ud800", "a\x00b", "t0", "d0", "cpu", "x" * 3000, "\n", "{}",
    "\u00e9", "\ufeff", "]]>", '"', "1.5.2", [], {}, [1], {"1": 1.0}, {"0": 1}, {"\u00b2": 1}, {"1": {}},
    {"float": "x"}, {"ref": []}, {"complex": [1]}, nested(50), nested(200),
)  # fmt: skip
"""Values put in the place of others."""


def mutated(data: Any, seed: int) -> Any:
    """A copy of parsed JSON in which one to three things are replaced, left out, copied from elsewhere or renamed."""
    draw = random.Random(seed)
    data = copy.deepcopy(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        spots = _spots(data)
        if not spots:
            break
        inside, key = draw.choice(spots)
        how = draw.random()
        if how < 0.6:
            inside[key] = copy.deepcopy(draw.choice(JUNK))
        elif how < 0.75:
            del inside[key]
        elif how < 0.85:
            other, there = draw.choice(spots)
            inside[key] = copy.deepcopy(other[there])
        elif isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        else:
            name = draw.choice((f"{key}x", key[:-1], "\ud800", "id", "bytes"))
            inside[name] = inside.pop(key)
    return data


def _spots(data: Any) -> list[tuple[Any, Any]]:
    """Every place in it, as what holds it and the key or position there."""
    found = []
    left = [data]
    while left:
        at = left.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        left += [at[key] for key in keys]
    return found
