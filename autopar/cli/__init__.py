"""Commands of `python -m autopar`; arguments that several take: `MODULE:FACTORY`, numbers and files; and checks of what
they need."""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import AutoparError

FACTORY = "MODULE:FACTORY, for example mymodel:make; make() -> (model, (x,))"
"""Help of the argument of `call_factory`."""


def above_zero(text: str) -> int:
    """Parse a positive integer. Raises argparse's error for anything else."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def duration(text: str) -> float:
    """Parse a finite number of seconds, 0 or more. Raises argparse's error for anything else."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return number


def names(text: str) -> list[str]:
    """Return the names in a comma-separated list, without the spaces around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def require_writable(path: Path | None) -> None:
    """Raise AutoparError if an output file cannot be written. Call it before the work that fills the file."""
    if path and not path.parent.is_dir():
        raise AutoparError(f"the folder of {path} does not exist; create it, or give another name")
    if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        why = "it is a folder" if path.is_dir() else f"{path.parent} is read-only"
        raise AutoparError(f"{path} cannot be written: {why}; give another name")


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Write a file atomically: complete, or unchanged. Raises AutoparError if it cannot be written.

    writer: writes the contents to the path that it is given, which has the same suffix.
    """
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        try:
            writer(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise AutoparError(f"{path} cannot be written ({error.strerror}); give another name") from None


def require_torch(why: str) -> None:
    """Raise AutoparError with the reason `why` if torch is not installed."""
    if not find_spec("torch"):
        raise AutoparError(f"torch is not installed, and {why}; install torch")


def call_factory(text: str, batch: int | None = None, command: str = "") -> tuple[Any, tuple[Any, ...]]:
    """Call `MODULE:FACTORY`, with `batch=` if given; return the model and its arguments.

    Raises AutoparError if it cannot be loaded, takes no batch, lacks a package, fails, or returns anything
    else. With a `command`, which needs a module, also if the model is a function.
    """
    factory = _factory(text)
    keywords = {} if batch is None else {"batch": batch}
    if not _takes(factory, keywords):
        name = text.partition(":")[2]
        if keywords:
            raise AutoparError(
                f"{text} takes no batch; write it as def {name}(batch=1), or leave --batch out"
            )
        raise AutoparError(f"{text} cannot be called without arguments; write it as def {name}()")
    try:
        result = factory(**keywords)
    except ModuleNotFoundError as error:
        raise AutoparError(f"{text} lacks a package: {error}; install it") from None
    except Exception as error:
        raise AutoparError(f"{text} fails: {_traced(error)}") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], (tuple, list)):
        raise AutoparError(f"{text} must return (model, (x, …)): a model and the tuple of its arguments")
    if command:
        from torch.nn import Module

        if not isinstance(result[0], Module):
            raise AutoparError(f"{text} gives a {type(result[0]).__name__}; {command} needs an nn.Module")
    return result[0], tuple(result[1])


def _takes(factory: Callable[..., Any], given: dict[str, int]) -> bool:
    try:
        inspect.signature(factory).bind(**given)
    except TypeError:
        return False
    except ValueError:  # a callable without a signature
        return True
    return True


def _factory(text: str) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    if not (module and name):
        raise AutoparError(f"{text!r} is not MODULE:FACTORY; write for example mymodel:make")
    sys.path.insert(0, "")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AutoparError(f"{text!r} cannot be loaded: {error}{_hint(error, module, name)}") from None
    except Exception as error:
        raise AutoparError(f"{text!r} cannot be loaded: {_traced(error)}") from error
    if not callable(factory):
        raise AutoparError(f"{text!r} is {factory!r}; name a function that returns (model, (x, …))")
    return factory


def _hint(error: ImportError | AttributeError, module: str, name: str) -> str:
    """Return what to type if the module does not exist; nothing if it exists and cannot be imported."""
    if module.endswith(".py"):
        return f"; write the module without .py, {module.removesuffix('.py').replace('/', '.')}:{name}"
    missing = isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])
    return "; name a module of this folder, or of PYTHONPATH" if missing else ""


def _traced(error: Exception) -> str:
    """Return an error of the user's code with its type, and the file and line that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
