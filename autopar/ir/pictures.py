"""Reports, pictures and HTML of plans, timelines and machines, by which their own methods are served.

The nouns know that they can be drawn, not how: `autopar.view`, which stands above them, registers its functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from ..errors import AutoparError

Kind: TypeAlias = Literal["explain", "draw", "save", "html"]

_RENDERERS: dict[tuple[Kind, type], Callable[..., Any]] = {}


def register(kind: Kind, noun: type, function: Callable[..., Any]) -> None:
    """Let `function(noun, *arguments)` serve a method of a class."""
    _RENDERERS[kind, noun] = function


def render(kind: Kind, noun: Any, *arguments: Any) -> Any:
    """Render a noun by the function registered for its class. Raises AutoparError where none is registered."""
    for known in type(noun).__mro__:
        if (kind, known) in _RENDERERS:
            return _RENDERERS[kind, known](noun, *arguments)
    raise AutoparError(
        f"nothing is loaded that can {kind} a {type(noun).__name__}; import autopar.view first"
    )
