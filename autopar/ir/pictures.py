"""Register of the functions that explain, report and draw plans, timelines and machines, for the methods of these
classes.

`autopar.planner` and `autopar.view`, higher layers, register their functions here, so that `ir` does not import them;
the first use of one loads these.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["explain", "reasons", "draw", "save", "html", "titles"]

Theme: TypeAlias = Literal["light", "dark"]
"""Colours of a picture: on white or on dark ground."""

_RENDERERS: dict[tuple[Kind, type], Callable[..., Any]] = {}


def register(kind: Kind, noun: type, function: Callable[..., Any]) -> None:
    """Register `function(noun, *arguments)` for a method of a class."""
    _RENDERERS[kind, noun] = function


def render(kind: Kind, noun: Any, *arguments: Any) -> Any:
    """Call the function registered for the class of `noun`."""
    import_module("autopar.view")
    known = next(known for known in type(noun).__mro__ if (kind, known) in _RENDERERS)
    return _RENDERERS[kind, known](noun, *arguments)
