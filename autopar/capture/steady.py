"""The guards of a captured call that hold as long as no dict of a module, and no module's class, has changed.

They are most of the guards of a large model. To check them, Dynamo follows each module's attributes, in memory that the
weights of the last call have evicted from the caches; the versions of the dicts are read all at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn

from ..system.memory import seldom, unchanged, versioned

_PLACE = re.compile(r"""L\['function'\]((?:\._modules\[(?:'[^']*'|"[^"]*")\])*)(?:\.(\w+)(.*))?""")
"""Source of a module, or of what it holds: the path to the module, the attribute, the rest."""
_STEP = re.compile(r"""\._modules\[(?:'([^']*)'|"([^"]*)")\]""")
_KEY = re.compile(r"list\(dict\.keys\((.*)\)\)\[\d+\]")
_ITEM = re.compile(r"""\[(?:'([^']*)'|"([^"]*)")\]""")
_PART = re.compile(r"(?:\[\d+\])*")
_ITEMS = ("_modules", "_parameters", "_buffers")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)
"""Classes of values that cannot change."""
_LEAVES = frozenset({
    "TYPE_MATCH", "ID_MATCH", "EQUALS_MATCH", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH", "DICT_CONTAINS", "DICT_LENGTH",
    "LENGTH_CHECK",
})  # fmt: skip
"""Guards on the identity of a value, its class, or the keys of a dict."""
_Check: TypeAlias = Callable[[dict[str, Any]], bool]


def checked(root: Any, function: Any) -> _Check:
    """Return the check of the guards of `root`, which hold now, on a call of `function`. It takes Dynamo's `L`."""
    steady = versioned() and isinstance(function, nn.Module)
    return _SteadyCheck(root, function) if steady else root.check


def managers(manager: Any) -> Iterator[Any]:
    """Yield a guard manager of Dynamo and all below it."""
    yield manager
    for child in _children(manager):
        yield from managers(child)


def _children(manager: Any) -> list[Any]:
    pairs = manager.get_key_value_managers().values() if hasattr(manager, "get_key_value_managers") else ()
    return [*manager.get_child_managers(), *(each for pair in pairs for each in pair if each)]


class _SteadyCheck:
    """Checks most guards by the versions of the modules' dicts. After a change it checks all; if they hold, it goes on
    from there."""

    def __init__(self, root: Any, function: nn.Module) -> None:
        self._root, self._function = root, function
        self._all, self._renewals = root.check, seldom()
        self._steady = self._made()
        """The check that no dict has changed, and the check of the guards that dicts do not tell about."""

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
        # Another thread may have changed a dict in between.
        if steady is not None and not self._all(values):
            return False
        self._steady = steady
        return True

    def _made(self) -> tuple[Callable[[], bool], _Check] | None:
        """Return what to check from now on instead of all guards, provided that these hold now; None if there is
        nothing less."""
        found = _Search(self._function)
        found.holds(self._root)
        sources = found.sources - found.others
        if not sources:
            return None
        same = unchanged(found.dicts.values(), found.modules.values())
        if same is None:
            return None
        return same, self._root.clone_manager(lambda each: each.get_source() not in sources).check


class _Search:
    """The guards below one manager. `sources`: those of steady ones. `others`: those of all others."""

    def __init__(self, function: nn.Module) -> None:
        self._function = function
        self.sources: set[str] = set()
        self.others: set[str] = set()
        self.dicts: dict[int, dict[str, Any]] = {}
        self.modules: dict[int, nn.Module] = {}

    def holds(self, manager: Any) -> bool:
        """Return True if a guard manager and all below it are steady."""
        source = manager.get_source()
        below = [self.holds(child) for child in _children(manager)]
        leaves = {type(leaf).__name__ for leaf in manager.get_leaf_guards()}
        key = _KEY.fullmatch(source)
        same = leaves <= {"ID_MATCH"} and not below
        steady = all(below) and leaves <= _LEAVES and self._known(key[1] if key else source, same)
        (self.sources if steady else self.others).add(source)
        return steady

    def _known(self, source: str, same: bool) -> bool:
        """Return True if a value cannot change without its module's dicts, or be another if that is all that is
        guarded (`same`); note these dicts."""
        place = _PLACE.fullmatch(source)
        passed = self._passed(place[1]) if place else []
        if place is None or not passed or not _told(vars(passed[-1]), place[2], place[3] or "", same):
            return False
        for module in passed:
            self.modules[id(module)] = module
            dicts = [vars(module), *(vars(module).get(name) for name in _ITEMS)]
            self.dicts |= {id(item): item for item in dicts if type(item) is dict}
        return True

    def _passed(self, path: str) -> list[nn.Module]:
        """Return the modules on a path, the function first; none if it leads elsewhere."""
        passed = [self._function]
        for step in _STEP.finditer(path):
            inner = vars(passed[-1]).get("_modules")
            module = inner.get(step[1] or step[2]) if type(inner) is dict else None
            if not isinstance(module, nn.Module):
                return []
            passed.append(module)
        return passed


def _told(attributes: dict[str, Any], name: str | None, rest: str, same: bool) -> bool:
    """Return True if changes of a module's dicts tell all changes of a part of it (`rest`)."""
    if name in (None, "__dict__"):
        return not rest
    if name not in attributes:
        return False
    value = attributes[name]
    if type(value) is dict and name in _ITEMS:
        item = _ITEM.match(rest)
        if item is None:
            return not rest
        value, rest = value.get(item[1] or item[2]), rest[item.end() :]
    return (same and not rest) or (_PART.fullmatch(rest) is not None and _fixed(value))


def _fixed(value: Any) -> bool:
    """Return True for a value that cannot change."""
    return type(value) in _PLAIN or (type(value) in (tuple, torch.Size) and all(map(_fixed, value)))
