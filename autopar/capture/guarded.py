"""The values that Dynamo's guards are about, from their sources, with what memory tells of changes of each."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import torch
from torch import nn

from ..system.cpython import Noted
from ..system.memory import Place

_PARTS = ("_modules", "_parameters", "_buffers")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)
"""Classes of values that cannot change."""
_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")
_IDENTITY, _CLASS = frozenset({"ID_MATCH"}), frozenset({"TYPE_MATCH", "ID_MATCH"})
"""Kinds of guards on the identity of a value, and on its class, too."""
_KEYS = _CLASS | {"DICT_CONTAINS", "DICT_LENGTH", "LENGTH_CHECK"}
"""Kinds of guards on the keys of a dict."""
_VALUE = _KEYS | {"EQUALS_MATCH", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH"}
"""Kinds of guards on a value that cannot change."""
_LACK = _CLASS | {"NO_HASATTR"}
"""Kinds of guards on attributes that an object lacks."""


class _Changeable(Exception):
    """A value may change, and no word of memory that is known tells it."""


class _Members(dict[str, Any]):
    """The attributes of a class, which are noted with it."""


Steady: TypeAlias = Callable[[str, Collection[str], Collection[str]], bool]
"""`steady(source, guards, lacking)` returns True if guards of these kinds on a source hold as long as all that is noted
stays the same. `lacking`: the attributes that its value must not have."""


def noting(function: Any, scope: dict[str, Any], restless: Collection[Place] = ()) -> tuple[Steady, Noted]:
    """Return what tells steady guards, and the dicts, objects, classes and functions that it notes on the way to their
    values.

    function: the value of `L['function']`. scope: the globals, `G`. restless: places of words that change too often.
    """
    values = _Values(function, scope, restless)
    return values.steady, values.noted


class _Values:
    """The values of sources. `noted`: what is on the way to them."""

    def __init__(self, function: Any, scope: dict[str, Any], restless: Collection[Place]) -> None:
        self._function, self._scope = function, scope
        self.noted = Noted(restless)

    def steady(self, source: str, guards: Collection[str], lacking: Collection[str]) -> bool:
        """Implement `Steady`."""
        try:
            return self._steady(self._value(ast.parse(source, mode="eval").body), {*guards}, lacking)
        # Not steady, a source of an unknown form, or an error of a look-up, which may be the user's own.
        except Exception:
            return False

    def _steady(self, value: Any, guards: set[str], lacking: Collection[str]) -> bool:
        if not guards:
            return True
        # Each look-up makes another method.
        if type(value) is types.MethodType:
            return False
        if guards <= _IDENTITY or (guards <= _VALUE and _fixed(value)):
            return True
        if guards <= _CLASS:
            return self.noted.kind(value)
        if guards <= _KEYS and type(value) in (dict, _Members):
            return type(value) is _Members or self.noted.items(value)
        return guards <= _LACK and self._lacks(value, lacking)

    def _lacks(self, value: Any, names: Collection[str]) -> bool:
        """Return True if it is noted that an object lacks attributes."""
        kind = type(value)
        found = getattr(kind, "__getattr__", None) in (None, nn.Module.__getattr__)
        found = found and bool(names) and self._plain(kind) and not any(_has(kind, name) for name in names)
        if not found or not self.noted.attributes(value):
            return False
        inner = [vars(value).get(name) for name in _PARTS] if issubclass(kind, nn.Module) else []
        return all(map(self.noted.items, inner))

    def _value(self, node: ast.AST) -> Any:
        """Return the value of a part of a source, and note all that it depends on. Raises _Changeable if that is not
        known, or the error of a look-up."""
        match node:
            case ast.Subscript(ast.Name("L"), ast.Constant("function")):
                return self._function
            case ast.Name("G"):
                return self._scope
            case ast.Constant(value):
                return value
            case ast.Attribute(inner, name):
                return self._attribute(self._value(inner), name)
            case ast.Call(ast.Name("type"), [inner]):
                value = self._value(inner)
                return _required(self.noted.kind(value), type, value)
            case ast.Call(ast.Name("dict"), [inner]):
                return self._items(inner)
            case ast.Subscript(
                ast.Call(ast.Name("list"), [ast.Call(keys, [inner])]), ast.Constant(int(place))
            ) if ast.unparse(keys) == "dict.keys":
                return [*self._items(inner)][place]
            case ast.Call(ast.Attribute(ast.Name("dict"), "__getitem__"), [inner, key]) | ast.Subscript(
                inner, key
            ):
                return self._items(inner)[self._value(key)]
        raise _Changeable

    def _items(self, node: ast.AST) -> Any:
        """Return a value with items, and note them."""
        value = self._value(node)
        fixed = type(value) in (_Members, tuple, torch.Size)
        return _required(fixed or self.noted.items(value), lambda: value)

    def _attribute(self, value: Any, name: str) -> Any:
        noted, kind = self.noted, type(value)
        # Not by `isinstance`, which asks the object.
        if kind is types.MethodType:
            return self._attribute(value.__func__, name)
        if kind is types.FunctionType:
            fixed = name == "__closure__"
            return _required(fixed or (name in _FIELDS and noted.field(value, name)), getattr, value, name)
        if kind is types.CellType:
            return _required(noted.contents(value), getattr, value, name)
        if kind is property:
            return getattr(value, name)
        if issubclass(kind, type):
            return self._of_class(value, name)
        if issubclass(kind, types.ModuleType):
            plain = noted.members(kind) and _looks_up(kind) is types.ModuleType.__getattribute__
            known = plain and not _has(kind, name) and noted.attributes(value)
            return _required(known, lambda: vars(value)[name])
        return _required(self._plain(kind) and noted.attributes(value), self._of_object, value, name)

    def _plain(self, kind: type) -> bool:
        """Return True if attributes of objects of a class are looked up in the usual way; note that."""
        return self.noted.members(kind) and _looks_up(kind) is object.__getattribute__

    def _of_object(self, value: Any, name: str) -> Any:
        own = vars(value)
        if name == "__dict__":
            return own
        if name == "__class__":
            return _required(_member(type(value), name) is vars(object)[name], type, value)
        if not _has(type(value), name):
            return own[name]
        found = _member(type(value), name)
        if hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"):
            raise _Changeable
        if name in own:
            return own[name]
        if type(found) is types.FunctionType:
            return types.MethodType(found, value)
        return _required(not hasattr(type(found), "__get__"), lambda: found)

    def _of_class(self, value: type, name: str) -> Any:
        known, kind = self.noted.members(value), type(value)
        if name == "__mro__":
            return _required(known, lambda: value.__mro__)
        if name == "__dict__":
            return _required(known, lambda: _Members(vars(value)))
        plain = self.noted.members(kind) and _looks_up(kind) is type.__getattribute__ and not _has(kind, name)
        found = _member(value, name)
        held = type(found) is types.FunctionType or not hasattr(type(found), "__get__")
        return _required(known and plain and held, lambda: found)


def _required(known: bool, read: Callable[..., Any], *args: Any) -> Any:
    """Read a value if all that it depends on is noted. Raises _Changeable otherwise."""
    if not known:
        raise _Changeable
    return read(*args)


def _looks_up(kind: type) -> Any:
    """Return the function by which attributes of objects of a class are looked up."""
    return kind.__getattribute__


def _has(kind: type, name: str) -> bool:
    return any(name in vars(each) for each in kind.__mro__)


def _member(kind: type, name: str) -> Any:
    """Return the attribute of a class or its bases, as it is there. Raises AttributeError if there is none."""
    for each in kind.__mro__:
        if name in vars(each):
            return vars(each)[name]
    raise AttributeError(name)


def _fixed(value: Any) -> bool:
    """Return True for a value that cannot change."""
    return type(value) in _PLAIN or (type(value) in (tuple, torch.Size) and all(map(_fixed, value)))
