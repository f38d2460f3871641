"""The guards of a captured call that hold as long as no dict, class or function on the way to a value has changed.

They are most of the guards of a large model. To check them, Dynamo follows each module's attributes, in memory that the
weights of the last call have evicted from the caches; the words that tell changes are read all at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from ..system.cpython import versioned
from ..system.memory import seldom
from .guarded import Guarded

_Check: TypeAlias = Callable[[dict[str, Any]], bool]


def checked(root: Any, function: Any, scope: dict[str, Any]) -> _Check:
    """Return the check of the guards of `root`, which hold now, on a call of `function`; `scope` is Dynamo's `G`. It
    takes Dynamo's `L`."""
    return _SteadyCheck(root, function, scope) if versioned() else root.check


def managers(manager: Any) -> Iterator[Any]:
    """Yield a guard manager of Dynamo and all below it."""
    yield manager
    for child in _children(manager):
        yield from managers(child)


def _children(manager: Any) -> list[Any]:
    pairs = manager.get_key_value_managers().values() if hasattr(manager, "get_key_value_managers") else ()
    return [*manager.get_child_managers(), *(each for pair in pairs for each in pair if each)]


class _SteadyCheck:
    """Checks most guards by words of memory. After a change it checks all; if they hold, it goes on from there."""

    def __init__(self, root: Any, function: Any, scope: dict[str, Any]) -> None:
        self._root, self._function, self._scope = root, function, scope
        self._all, self._renewals = root.check, seldom()
        self._steady = self._made()
        """The check that nothing has changed, and the check of the guards that it does not tell about."""

    def __call__(self, values: dict[str, Any]) -> bool:
        """Return True if the guards hold."""
        steady = self._steady
        if steady is not None:
            if steady[0]():
                return steady[1](values)
            # It refers to modules that may be gone.
            self._steady = None
        if not self._all(values):
            return False
        steady = self._renewals(self._made)
        # Another thread may have changed something in between.
        if steady is not None and not self._all(values):
            return False
        self._steady = steady
        return True

    def _made(self) -> tuple[Callable[[], bool], _Check] | None:
        """Return what to check from now on instead of all guards, provided that these hold now; None if there is
        nothing less."""
        guarded = Guarded(self._function, self._scope)
        steady, others = set[str](), set[str]()

        def holds(manager: Any) -> bool:
            """Return True if a guard manager and all below it are steady."""
            source, leaves = manager.get_source(), manager.get_leaf_guards()
            below = [holds(child) for child in _children(manager)]
            kinds = [type(leaf).__name__ for leaf in leaves]
            found = all(below) and (not kinds or guarded.steady(source, kinds, _lacking(source, leaves)))
            (steady if found else others).add(source)
            return found

        holds(self._root)
        left, unchanged = steady - others, guarded.noted.unchanged()
        if not left or unchanged is None:
            return None
        return unchanged, self._root.clone_manager(lambda each: each.get_source() not in left).check


def _lacking(source: str, leaves: Collection[Any]) -> list[str]:
    """Return the attributes that guards require an object to lack; none if one of the guards has an unknown form."""
    texts = [leaf.verbose_code_parts()[0] for leaf in leaves if type(leaf).__name__ == "NO_HASATTR"]
    found = [re.match(rf"not hasattr\({re.escape(source)}, '(\w+)'\)", text) for text in texts]
    return [each[1] for each in found if each] if all(found) else []
