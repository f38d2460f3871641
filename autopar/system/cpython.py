"""Words of CPython's memory that tell changes of dicts, objects, classes and functions."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

from .memory import Place, constant, word

_WORD = 8
_CLASS, _ATTRIBUTES = 8, -24
"""Offsets of the class of an object and, where `_MANAGED` is among the flags of the class, of its `__dict__`."""
_FLAGS, _MANAGED = 168, 1 << 4
_VERSION = 24
"""Offset of the version of a dict: with each change, it gets one that no other dict has had."""
_TAG = 384
"""Offset of the version tag of a class: 0 after a change of it or of a base, until an attribute is next looked up,
which gives it one that no other class has had."""
_FIELDS = {"__code__": 48, "__defaults__": 56, "__kwdefaults__": 64}
"""Offsets of the attributes of a function that may be replaced."""
_CONTENTS = 16
"""Offset of the contents of a cell."""


def _word(item: Any, offset: int) -> int:
    return word(id(item) + offset)


@functools.cache
def versioned() -> bool:
    """Return True if words of memory tell each change, as in CPython 3.11 and 3.12.

    In 3.13, an attribute that its object holds itself leaves no version of a dict (and 3.13.0 does not tell CPython's
    watchers of dicts of it either), and 3.14 has none.
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13) or sys.maxsize < 2**32:
        return False
    return _dicts_tell() and _classes_tell() and _functions_tell()


def _dicts_tell() -> bool:
    class _Owner:
        def __init__(self) -> None:
            self.own = 0

    owner = _Owner()
    items = vars(owner)
    seen = [_word(items, _VERSION)]
    for change in (
        lambda: setattr(owner, "own", 1), lambda: setattr(owner, "other", 1), lambda: delattr(owner, "other"),
        lambda: items.update(own=2), lambda: items.pop("own"), items.clear,
    ):  # fmt: skip
        change()
        seen.append(_word(items, _VERSION))
    items.get("own")
    same = _word(items, _VERSION) == seen[-1]
    return same and _word(owner, _CLASS) == id(_Owner) and _attributed(owner) and len({*seen}) == len(seen)


def _classes_tell() -> bool:
    class _Base:
        own = 0

    class _Class(_Base):
        pass

    seen = [_tag(_Class)]
    changes: tuple[Callable[[], None], ...] = (
        lambda: setattr(_Class, "other", 1), lambda: setattr(_Base, "own", 1), lambda: delattr(_Class, "other"),
    )  # fmt: skip
    for change in changes:
        change()
        seen += [_word(_Class, _TAG), _tag(_Class)]
    tags = seen[::2]
    return 0 not in tags and len({*tags}) == len(tags) and not any(seen[1::2]) and _tag(_Class) == seen[-1]


def _functions_tell() -> bool:
    held = object()

    def function(first: Any = held, *, second: Any = held) -> Any:
        return first, second, held

    told = all(_word(function, offset) == id(getattr(function, name)) for name, offset in _FIELDS.items())
    return told and function.__closure__ is not None and _word(function.__closure__[0], _CONTENTS) == id(held)


def _tag(kind: type) -> int:
    """Return the version tag of a class; 0 if it gets none."""
    type.__getattribute__(kind, "__init__")
    return _word(kind, _TAG)


def _attributed(item: Any) -> bool:
    """Return True if the `__dict__` of an object is where it is expected."""
    # An object that holds its attributes itself makes its `__dict__` now.
    attributes = id(vars(item))
    return bool(_word(type(item), _FLAGS) & _MANAGED) and _word(item, _ATTRIBUTES) == attributes


class Noted:
    """Dicts, objects, classes and functions whose changes words of memory tell. Each method returns False if they do
    not tell those of an argument; only where `versioned`.

    restless: places that are not noted, since they change too often.
    """

    def __init__(self, restless: Collection[Place] = ()) -> None:
        self._restless = restless
        self._held: dict[int, Any] = {}
        self._words: dict[Place, int] = {}
        """The words at the time when each was noted."""

    def items(self, item: Any) -> bool:
        """Note the items of a dict."""
        # A subclass may hold more.
        return type(item) is dict and self._note(item, _VERSION)

    def kind(self, item: Any) -> bool:
        """Note the class of an object."""
        return self._note(item, _CLASS, type(item))

    def attributes(self, item: Any) -> bool:
        """Note the class and the attributes of an object or a module, other than those in slots."""
        kept = issubclass(type(item), types.ModuleType) or (
            _attributed(item) and self._note(item, _ATTRIBUTES)
        )
        return kept and self.kind(item) and self.items(vars(item))

    def members(self, item: type) -> bool:
        """Note the attributes of a class and of its bases."""
        # Without a tag, as after a change by another thread just now, no further change is told.
        return bool(_tag(item)) and self._note(item, _TAG) and bool(self._words[id(item) + _TAG, _WORD])

    def field(self, function: types.FunctionType, name: str) -> bool:
        """Note an attribute of a function that may be replaced."""
        return self._note(function, _FIELDS[name], getattr(function, name))

    def contents(self, cell: types.CellType) -> bool:
        """Note the contents of a cell."""
        return self._note(cell, _CONTENTS, cell.cell_contents)

    def _note(self, item: Any, offset: int, inner: Any = None) -> bool:
        """Note a word of an object. If it is the address of another object, `inner`, that is kept, too: once it is
        freed, a third one may get its address."""
        place = id(item) + offset, _WORD
        if place in self._restless:
            return False
        self._held[id(item)], self._held[id(inner)] = item, inner
        self._words.setdefault(place, _word(item, offset))
        return True

    def unchanged(self) -> Callable[[], bool] | None:
        """Return a function that returns True while all of them are as when they were noted, and keeps them alive; None
        if there are none, or one has changed since."""
        if not self._words:
            return None
        same = constant([*self._words], owners=self._held)
        return None if self.changed() else same

    def changed(self) -> list[Place]:
        """Return the places of those that have changed since they were noted."""
        return [place for place, known in self._words.items() if word(place[0]) != known]


def unchanged(dicts: Iterable[Any]) -> Callable[[], bool] | None:
    """Return a function that returns True while dicts have the items that they have now; None if that cannot be told.
    It keeps them alive."""
    noted, items = Noted(), [*dicts]
    return noted.unchanged() if versioned() and all(map(noted.items, items)) else None
