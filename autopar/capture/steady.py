"""The guards of a captured call that hold as long as no dict, class or function on the way to a value has changed.

They are most of the guards of a large model. To check them, Dynamo follows each module's attributes, in memory that the
weights of the last call have evicted from the caches; the words that tell changes are read all at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from ..system.cpython import Noted, versioned
from ..system.memory import Place, seldom
from .guarded import Steady, noting

RESTLESS = 3
"""Changes of a word after which its guards are left to Dynamo: in a script, globals change with each round of a
loop."""
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
        self._changes = Counter[Place]()
        """Number of changes of each word, by its place; those that change again and again tell nothing."""
        self._steady = self._made()
        """The check that nothing has changed, the check of the guards that it does not cover, and what is noted."""

    def __call__(self, values: dict[str, Any]) -> bool:
        """Return True if the guards hold."""
        steady = self._steady
        if steady is not None:
            if steady[0]():
                return steady[1](values)
            self._changes.update(steady[2].changed())
            # It keeps modules, classes and functions alive that may no longer be used.
            self._steady = None
        if not self._all(values):
            return False
        steady = self._renewals(self._made)
        # Another thread may have changed something in between.
        if steady is not None and not self._all(values):
            return False
        self._steady = steady
        return True

    def _made(self) -> tuple[Callable[[], bool], _Check, Noted] | None:
        """Return what to check from now on instead of all guards, provided that these hold now; None if there is
        nothing less."""
        restless = {place for place, times in self._changes.items() if times >= RESTLESS}
        tells, noted = noting(self._function, self._scope, restless)
        steady, others = set[str](), set[str]()
        _sort(self._root, tells, steady, others)
        left, unchanged = steady - others, noted.unchanged()
        if not left or unchanged is None:
            return None
        rest = self._root.clone_manager(lambda each: each.get_source() not in left).check
        return unchanged, rest, noted


def _sort(manager: Any, tells: Steady, steady: set[str], others: set[str]) -> bool:
    """Add the sources of a guard manager and of all below it to the steady ones or the others; return whether all are
    steady."""
    source, leaves = manager.get_source(), manager.get_leaf_guards()
    below = [_sort(child, tells, steady, others) for child in _children(manager)]
    kinds = [type(leaf).__name__ for leaf in leaves]
    if hasattr(manager, "get_key_value_managers"):
        # It checks the length itself.
        kinds.append("DICT_LENGTH")
    found = all(below) and tells(source, kinds, _lacking(source, leaves))
    (steady if found else others).add(source)
    return found


def _lacking(source: str, leaves: Collection[Any]) -> list[str]:
    """Return the attributes that guards require an object to lack; none if one of the guards has an unknown form."""
    texts = [leaf.verbose_code_parts()[0] for leaf in leaves if type(leaf).__name__ == "NO_HASATTR"]
    found = [re.match(rf"not hasattr\({re.escape(source)}, '(\w+)'\)", text) for text in texts]
    return [each[1] for each in found if each] if all(found) else []
