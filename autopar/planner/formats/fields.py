"""Fields of a graph file, read one at a time, each with the sentence that says what is wrong with it.

What a field is called comes as a template and what fills it, so that nothing is put together for files without fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, cast

from ...errors import PlanError
from ...system.jsonfile import short, whole

LARGEST = 1e30
"""What no number of a file may exceed, so that sums of them stay finite."""
SMALLEST = 1e-300
"""Smallest time that counts: dividing by less overflows."""
MANY = 1_000_000
"""What no number of things may exceed, as each has a name of its own."""


def row(data: Any, what: str, *of: Any, such: str = "{…}") -> Mapping[str, Any]:
    """An object of the file, which looks as `such`."""
    if type(data) is dict or isinstance(data, Mapping):
        return cast(Mapping[str, Any], data)
    raise PlanError(f"{what.format(*of)} is {short(data)}; it must be an object such as {such}")


def rows(data: Mapping[str, Any], key: str, lists: Sequence[str]) -> Sequence[Any]:
    """A list of the file, by its key; `lists` are those it must have."""
    if key not in data:
        needed = " and ".join((", ".join(f'"{name}"' for name in lists[:-1]), f'"{lists[-1]}"'))
        raise PlanError(f'the graph has no "{key}"; it needs the lists {needed}')
    return items(data[key], '"{}"', key)


def items(value: Any, what: str, *of: Any) -> Sequence[Any]:
    """A list."""
    if not isinstance(value, (list, tuple)):
        raise PlanError(f"{what.format(*of)} is {short(value)}; it must be a list")
    return value


def need(data: Mapping[str, Any], key: str, where: str, *of: Any) -> Any:
    """What an object has under `key`, or PlanError."""
    if key in data:
        return data[key]
    near = get_close_matches(key, [other for other in data if isinstance(other, str)], 1, 0.8)
    meant = f"is {near[0]!r} meant to be it?" if near else f"add {key!r} to it"
    raise PlanError(f"{where.format(*of)} has no {key!r}; {meant}")


def spelt(data: Mapping[str, Any], words: Set[str], where: str, *of: Any) -> None:
    """Refuse a key that is none of `words` and nearly one that is missing: what it says would go unheard."""
    if data.keys() <= words:
        return
    for key in data:
        near = None if key in words else _meant(key, words)
        if near is not None and near not in data:
            raise PlanError(
                f"{where.format(*of)} has {key!r}, which the format does not know; write {near!r}, or another name"
            )


@lru_cache(maxsize=1024)
def _meant(key: object, words: Set[str]) -> str | None:
    """The word that a key was likely meant to be: `memory` is `memory_bytes`, `state_byte` is `state_bytes`."""
    if not isinstance(key, str):
        return None
    longer = [word for word in sorted(words) if word.startswith(f"{key}_")]
    return next(iter(longer or get_close_matches(key, sorted(words), 1, 0.8)), None)


def text(value: Any, what: str, *of: Any) -> str:
    """A name."""
    if not isinstance(value, str) or not value:
        raise PlanError(f"{what.format(*of)} is {short(value)}; it must be a name in quotes")
    if not whole(value):
        raise PlanError(
            f"{what.format(*of)} is {short(value)}, which has half of a character (a lone surrogate) and so cannot be "
            "written; give another name"
        )
    return value


def seconds(value: Any, what: str, *of: Any) -> float:
    """A finite number of seconds from 0 on; one too small to divide by (below 1e-300) is 0."""
    if type(value) is not float or not 0.0 <= value <= LARGEST:
        value = float(number(value, "seconds", what, *of))
    return float(value) if value >= SMALLEST else 0.0


def nbytes(value: Any, what: str, *of: Any) -> int:
    """A finite number of bytes from 0 on. Fractions are kept as they are: graphs made of random weights have them."""
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    found = number(value, "bytes", what, *of)
    return int(found) if found == int(found) else cast(int, found)


def count(value: Any, what: str, *of: Any, least: int = 1) -> int:
    """A whole number of things, from `least` to `MANY`."""
    found = number(value, "how many", what, *of)
    if not least <= found <= MANY or found != int(found):
        raise PlanError(
            f"{what.format(*of)} is {short(value)}; it must be a whole number from {least} to {MANY:,}"
        )
    return int(found)


def number(value: Any, unit: str, what: str, *of: Any) -> float:
    """A finite number from 0 on; that of another library, such as numpy, as one of Python."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PlanError(f"{what.format(*of)} is {short(value)}; it must be a number ({unit})")
    try:
        value = int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        value = int(value)
    if value != value or value in (math.inf, -math.inf):
        raise PlanError(f"{what.format(*of)} is {value}; it must be a finite number ({unit})")
    if value < 0:
        raise PlanError(f"{what.format(*of)} is {short(value)}; it must not be negative")
    if value > LARGEST:
        raise PlanError(
            f"{what.format(*of)} is {short(value)}; {LARGEST:g} is the most there may be ({unit})"
        )
    found: float = value
    return found


def known(name: Any, names: Mapping[str, int], kind: str, what: str, *of: Any) -> int:
    """The number that `names` gives a name, which must be among them."""
    if isinstance(name, str) and name in names:
        return names[name]
    text(name, what, *of)
    near = get_close_matches(name, names, 1)
    listed = ", ".join(map(repr, [*names][:8])) + (", …" if len(names) > 8 else "")
    meant = f"did you mean {near[0]!r}?" if near else f"there are {listed or 'none'}"
    raise PlanError(f"{what.format(*of)} is {short(name)}, which is no {kind} of this graph; {meant}")
