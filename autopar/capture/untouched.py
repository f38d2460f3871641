"""Capture runs the user's code on stand-ins; here is what puts back whatever that run touched."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from .generators import generators, restore

_FROZEN = "its numbers are those of the capture at every call; draw with torch.rand instead"


@contextlib.contextmanager
def untouched(notes: list[str]) -> Iterator[None]:
    """Leave every random generator as it is found; draws that no graph can repeat are added to `notes`."""
    states = generators()
    python, numpy = random.getstate(), sys.modules.get("numpy")
    legacy = numpy.random.get_state(legacy=False) if numpy is not None else None
    try:
        yield
    finally:
        restore(states)
        if random.getstate() != python:
            random.setstate(python)
            notes.append(f"the model draws from Python's `random`: {_FROZEN}")
        if numpy is not None and legacy is not None:
            now = numpy.random.get_state(legacy=False)
            if str(now["state"]) != str(legacy["state"]) or now["state"]["pos"] != legacy["state"]["pos"]:
                numpy.random.set_state(legacy)
                notes.append(f"the model draws from `numpy.random`: {_FROZEN}")


class Attributes:
    """The attributes of a model's modules as they are now, lists and dicts one level deep.

    Without `registered`, parameters, buffers and children are left to whoever watches those.
    """

    def __init__(self, model: nn.Module, registered: bool = True) -> None:
        skip = () if registered else ("_parameters", "_buffers", "_modules")
        self.before = [
            (
                path,
                module,
                {key: (item, _contents(item)) for key, item in vars(module).items() if key not in skip},
            )
            for path, module in model.named_modules()
        ]
        self.skip = skip

    def put_back(self) -> dict[str, Any]:
        """Undo every assignment since; what was undone, as {dotted name: the value it had got}."""
        changed: dict[str, Any] = {}
        for path, module, before in self.before:
            now, dot = vars(module), f"{path}." if path else ""
            for key, (item, contents) in before.items():
                if now.get(key, _MISSING) is not item:
                    changed[dot + key] = now.get(key)
                    now[key] = item
                if contents is not None and not _equal(item, contents):
                    changed[dot + key] = item.copy()
                    item.clear()
                    (item.extend if isinstance(item, list) else item.update)(contents)
            for key in [key for key in now if key not in before and key not in self.skip]:
                changed[dot + key] = now.pop(key)
        return changed


_MISSING = object()


def _contents(item: Any) -> Any:
    return item.copy() if isinstance(item, (list, dict, set)) else None


def _equal(item: Any, contents: Any) -> bool:
    if isinstance(item, set):
        return item == contents
    if isinstance(item, dict):
        return list(item) == list(contents) and all(a is b for a, b in zip(item.values(), contents.values()))
    return len(item) == len(contents) and all(a is b for a, b in zip(item, contents))
