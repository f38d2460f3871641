"""Program → outputs and timeline: lanes, events, generated code. `Executor` is loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["Executor"]


def __getattr__(name: str) -> Any:
    if name == "Executor":
        from .executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
