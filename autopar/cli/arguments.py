"""Arguments shared by several commands: `MODULE:FACTORY`, numbers and files; and checks of what they need."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import AutoparError

FACTORY = "MODULE:FACTORY, for example mymodel:make; make() -> (model, (x,))"
"""Help of the argument of `made`."""


def above_zero(text: str) -> int:
    """Parse a positive whole number; argparse's error for any other."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def require_folder(path: Path | None) -> None:
    """Raise AutoparError if the folder of an output file does not exist."""
    if path and not path.parent.is_dir():
        raise AutoparError(f"the folder of {path} is not there; make it, or give another name")


def require_torch(why: str) -> None:
    """Raise AutoparError with the reason `why` if torch is not installed."""
    if not find_spec("torch"):
        raise AutoparError(f"torch is not installed, and {why}; install torch")


def made(text: str, batch: int | None = None, command: str = "") -> tuple[Any, tuple[Any, ...]]:
    """Call `MODULE:FACTORY`, with `batch=` if given; return the model and its arguments.

    Raises AutoparError if it cannot be loaded, takes no batch, lacks a package, or returns anything else, and for a
    function if a `command` that needs a module is given.
    """
    factory = _factory(text)
    given = {} if batch is None else {"batch": batch}
    if not _takes(factory, given):
        name = text.partition(":")[2]
        if given:
            raise AutoparError(
                f"{text} takes no batch; write it as def {name}(batch=1), or leave --batch out"
            )
        raise AutoparError(f"{text} cannot be called without arguments; write it as def {name}()")
    try:
        found = factory(**given)
    except ModuleNotFoundError as error:
        raise AutoparError(f"{text} lacks a package: {error}; install it") from None
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], (tuple, list)):
        raise AutoparError(f"{text} must return (model, (x, …)): a model and the tuple of its arguments")
    if command:
        from torch.nn import Module

        if not isinstance(found[0], Module):
            raise AutoparError(f"{text} gives a {type(found[0]).__name__}; {command} needs an nn.Module")
    return found[0], tuple(found[1])


def _takes(factory: Callable[..., Any], given: dict[str, int]) -> bool:
    try:
        inspect.signature(factory).bind(**given)
    except TypeError:
        return False
    except ValueError:  # a callable that does not tell
        return True
    return True


def _factory(text: str) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    if not name:
        raise AutoparError(f"{text!r} is not MODULE:FACTORY; write for example mymodel:make")
    sys.path.insert(0, "")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AutoparError(f"{text!r} cannot be loaded: {error}") from None
    if not callable(found):
        raise AutoparError(f"{text!r} is {found!r}; name a function that returns (model, (x, …))")
    return found
