"""Typed fields of the objects of a file, with their error messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, cast

from ...errors import PlanError
from ...ir.serialize import short, whole

LARGEST = 1e30
"""Limit on the numbers of a file, so that sums of them stay finite."""
SMALLEST = 1e-300
"""Least nonzero time in seconds; less is 0, since dividing by it overflows."""
MANY = 1_000_000
"""Limit on each count in a file, since each item has a name."""

_NEEDED: Any = object()


class JsonObject:
    """An object of a file; `called` names it in error messages.

    Each method reads one field, which is required unless a default is given; a default is returned as it is.
    """

    __slots__ = ("called", "data")

    def __init__(self, data: Any, called: str, such: str = "{…}") -> None:
        if type(data) is not dict and not isinstance(data, Mapping):
            raise PlanError(f"{called} is {short(data)}; it must be an object such as {such}")
        self.data: Mapping[str, Any] = data
        self.called = called

    def name(self, kind: str, words: Set[str], key: str = "id") -> str:
        """Read the name under `key`, and use it in error messages from then on.

        `words`: the keys of the format. A key that resembles a missing one is refused instead of ignored.
        """
        label: str = self.text(key)
        self.called = f"{kind} {label!r}"
        self.spelt(words)
        return label

    def spelt(self, words: Set[str]) -> None:
        """Raise PlanError for a key that is not in `words` but resembles a missing one."""
        for key in () if self.data.keys() <= words else self.data:
            near = None if key in words else _meant(key, words)
            if near is not None and near not in self.data:
                raise PlanError(
                    f"{self.called} has {key!r}, which the format does not know; write {near!r}, or another name"
                )

    def need(self, key: str) -> Any:
        """Return the field under a key. Raises PlanError if it is missing, with the key that may be meant."""
        if key in self.data:
            return self.data[key]
        near = get_close_matches(key, [other for other in self.data if isinstance(other, str)], 1, 0.8)
        meant = f"is {near[0]!r} meant to be it?" if near else f"add {key!r} to it"
        raise PlanError(f"{self.called} has no {key!r}; {meant}")

    def text(self, key: str, default: Any = _NEEDED) -> Any:
        """Read a name."""
        if default is not _NEEDED and self.data.get(key, default) is default:
            return default
        return text(self.need(key), f"{key!r} of {self.called}")

    def seconds(self, key: str) -> float:
        """Read a finite number of seconds ≥ 0; less than 1e-300 becomes 0."""
        return seconds(self.need(key), f"{key!r} of {self.called}")

    def number(self, key: str, unit: str) -> float:
        """Read a finite number ≥ 0."""
        return number(self.need(key), unit, f"{key!r} of {self.called}")

    def nbytes(self, key: str, default: Any = _NEEDED) -> Any:
        """Read a finite number of bytes ≥ 0. Fractions are kept, since graphs with random weights have them."""
        if default is not _NEEDED and self.data.get(key, default) is default:
            return default
        nbytes = number(self.need(key), "bytes", f"{key!r} of {self.called}")
        return int(nbytes) if nbytes == int(nbytes) else nbytes

    def count(self, key: str, default: int) -> int:
        """Read a whole number from 1 to `MANY`."""
        value = self.data.get(key, default)
        what = f"{key!r} of {self.called}"
        items = number(value, "how many", what)
        if not 1 <= items <= MANY or items != int(items):
            raise PlanError(f"{what} is {short(value)}; it must be a whole number from 1 to {MANY:,}")
        return int(items)

    def among(self, key: str, names: Mapping[str, int], kind: str) -> int:
        """Read a name among `names`; return its number."""
        return known(self.need(key), names, kind, f"{key!r} of {self.called}")

    def items(self, key: str) -> Sequence[Any]:
        """Read a list."""
        value = self.need(key)
        if not isinstance(value, (list, tuple)):
            raise PlanError(f"{key!r} of {self.called} is {short(value)}; it must be a list")
        return value

    def entries(self, key: str) -> list[JsonObject]:
        """Read a list of objects."""
        return [JsonObject(item, f"{key}[{index}]") for index, item in enumerate(self.items(key))]


@lru_cache(maxsize=1024)
def _meant(key: object, words: Set[str]) -> str | None:
    """Return the word that a key probably means: `memory` is `memory_bytes`, `state_byte` is `state_bytes`."""
    if not isinstance(key, str):
        return None
    longer = [word for word in sorted(words) if word.startswith(f"{key}_")]
    return next(iter(longer or get_close_matches(key, sorted(words), 1, 0.8)), None)


def text(value: Any, what: str) -> str:
    """Return a value that must be a name."""
    if not isinstance(value, str) or not value:
        raise PlanError(f"{what} is {short(value)}; it must be a name in quotes")
    if not whole(value):
        raise PlanError(
            f"{what} is {short(value)}, which has half of a character (a lone surrogate) and so cannot be written; "
            "give another name"
        )
    return value


def seconds(value: Any, what: str) -> float:
    """Return a value that must be a finite number of seconds ≥ 0; less than 1e-300 becomes 0."""
    result = float(number(value, "seconds", what))
    return result if result >= SMALLEST else 0.0


def number(value: Any, unit: str, what: str) -> float:
    """Return a value that must be a finite number ≥ 0, as Python's own if it comes from numpy or the like."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PlanError(f"{what} is {short(value)}; it must be a number ({unit})")
    try:
        value = int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        value = int(value)
    if value != value or value in (math.inf, -math.inf):
        raise PlanError(f"{what} is {value}; it must be a finite number ({unit})")
    if value < 0:
        raise PlanError(f"{what} is {short(value)}; it must not be negative")
    if value > LARGEST:
        raise PlanError(f"{what} is {short(value)}; {LARGEST:g} is the largest value allowed ({unit})")
    return cast(float, value)


def known(name: Any, names: Mapping[str, int], kind: str, what: str) -> int:
    """Return the number of a name that must be among `names`."""
    if isinstance(name, str) and name in names:
        return names[name]
    text(name, what)
    near = get_close_matches(name, names, 1)
    listed = ", ".join(map(repr, [*names][:8])) + (", …" if len(names) > 8 else "")
    meant = f"did you mean {near[0]!r}?" if near else f"there are {listed or 'none'}"
    raise PlanError(f"{what} is {short(name)}, which is not a {kind} of this graph; {meant}")
