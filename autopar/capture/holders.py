"""Where a function, such as a hook, may keep something beyond a call: what it reaches by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .functions import reachable
from .private import pytree

_MISSING = object()


class Holders:
    """The lists, dicts, sets and objects that functions reach, and the variables they assign, as they are now."""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self.places: list[tuple[str, dict[str, Any], str, Any]] = []
        self.cells: list[tuple[str, Any, Any]] = []
        self.contents: list[tuple[str, Any, Any]] = []
        for function in functions:
            self._variables(function)
            if not inspect.isroutine(function):
                self._container(type(function).__name__, function, deep=True)
            for name, item in reachable(function):
                self._container(name, item, deep=True)

    def put_back(self) -> dict[str, bool]:
        """Undo every change since; what was changed, and whether that had kept a tensor."""
        changed: dict[str, bool] = {}
        for name, scope, key, item in self.places:
            now = scope.get(key, _MISSING)
            if now is not item:
                changed[name] = _tensors(now)
                _assign(scope, key, item)
        for name, cell, item in self.cells:
            now = _content(cell)
            if now is not item and item is not _MISSING:
                changed[name] = _tensors(now)
                cell.cell_contents = item
        for name, holder, before in self.contents:
            if not _same(holder, before):
                changed[name] = _tensors(holder)
                holder.clear()
                (holder.extend if isinstance(holder, list) else holder.update)(before)
        return changed

    def _variables(self, function: Callable[..., Any]) -> None:
        for code, inner in _codes(function):
            for name, cell in zip(code.co_freevars, inner.__closure__ or ()):
                self.cells.append((name, cell, _content(cell)))
            for name in code.co_names:
                scope = inner.__globals__
                self.places.append((name, scope, name, scope.get(name, _MISSING)))

    def _container(self, name: str, item: Any, deep: bool) -> None:
        if isinstance(item, (list, dict, set)):
            self.contents.append((name, item, item.copy()))
        elif deep and hasattr(item, "__dict__") and not _foreign(item):
            held = vars(item)
            for key, inner in list(held.items()):
                self._container(f"{name}.{key}", inner, deep=False)
            self.contents.append((name, held, held.copy()))


def _codes(function: Any) -> Iterator[tuple[Any, Any]]:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(function):
        yield function.__code__, function


def _foreign(item: Any) -> bool:
    """Whether an object is none that keeps things for a hook."""
    if isinstance(item, (torch.Tensor, type)) or inspect.isroutine(item) or inspect.ismodule(item):
        return True
    return type(item).__module__.partition(".")[0] in ("torch", "builtins", "functools")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _assign(scope: dict[str, Any], key: str, item: Any) -> None:
    if item is _MISSING:
        scope.pop(key, None)
    else:
        scope[key] = item


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, set):
        return bool(now == before)
    if isinstance(now, dict):
        return list(now) == list(before) and all(a is b for a, b in zip(now.values(), before.values()))
    return len(now) == len(before) and all(a is b for a, b in zip(now, before))


def _tensors(item: Any) -> bool:
    leaves = pytree.tree_leaves(list(item) if isinstance(item, set) else item)
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)
