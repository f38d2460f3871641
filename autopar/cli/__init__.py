"""Commands of `python -m autopar`, and what several of them share: the parser, `MODULE:FACTORY`, numbers and files."""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

from ..errors import AutoparError

FACTORY = "MODULE:FACTORY or FILE.py:FACTORY, for example mymodel:make; make() -> (model, (x,))"
"""Help of the argument of `call_factory`."""

RETURNS = "(model, (x, …)), (model, {name: x}) or (model, (x, …), {name: x})"
"""The results that a factory may return: a model, and its inputs by position, by keyword, or both."""


class Parser(argparse.ArgumentParser):
    """A parser of arguments that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Write the message to stderr and exit with status 2."""
        command = self.prog.removeprefix("python -m ")
        self.exit(2, f"{command}: {message}; {self.prog} --help lists all options\n")


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

    writer: writes the contents to a temporary path, which has the same suffix.
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


def call_factory(
    text: str, batch: int | None = None, command: str = ""
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a model, its arguments and its keyword arguments, from a call of `MODULE:FACTORY`, with `batch=` if given.

    command: the name of a command that needs an nn.Module, for the error.

    Raises AutoparError if the factory cannot be loaded, takes no batch, lacks a package, raises, or returns anything
    else.
    """
    factory, name = _factory(text), text.rpartition(":")[2]
    keywords = {} if batch is None else {"batch": batch}
    try:
        inspect.signature(factory).bind(**keywords)
    except ValueError:
        pass  # a callable without a signature
    except TypeError:
        if keywords:
            raise AutoparError(
                f"{text} takes no batch; write it as def {name}(batch=1), or leave --batch out"
            ) from None
        raise AutoparError(f"{text} cannot be called without arguments; write it as def {name}()") from None
    try:
        result = factory(**keywords)
    except ModuleNotFoundError as error:
        raise AutoparError(f"{text} lacks a package: {error}; install it") from None
    except Exception as error:
        raise AutoparError(f"{text} raises {_traced(error)}") from error
    match result:
        case (model, Mapping() as kwargs):
            args: tuple[Any, ...] = ()
        case (model, (tuple() | list()) as inputs, *rest) if not rest or isinstance(rest[0], Mapping):
            args, kwargs = tuple(inputs), rest[0] if rest else {}
        case _:
            raise AutoparError(f"{text} must return {RETURNS}")
    if command:
        from torch.nn import Module

        if not isinstance(model, Module):
            raise AutoparError(f"{text} returns a {type(model).__name__}; {command} needs an nn.Module")
    return model, args, dict(kwargs)


def _factory(text: str) -> Callable[..., Any]:
    module, _, name = text.rpartition(":")
    if not (module and name):
        raise AutoparError(f"{text!r} is not MODULE:FACTORY; write for example mymodel:make")
    sys.path.insert(0, "")
    try:
        load = _from_file if module.endswith(".py") else importlib.import_module
        factory: Callable[..., Any] = getattr(load(module), name)
    except (ImportError, AttributeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])
        hint = "; name a module of this folder, or of PYTHONPATH, or a file.py" if missing else ""
        raise AutoparError(f"{text!r} cannot be loaded: {error}{hint}") from None
    except Exception as error:
        raise AutoparError(f"{text!r} cannot be loaded: {_traced(error)}") from error
    if not callable(factory):
        raise AutoparError(f"{text!r} is {factory!r}; name a function that returns {RETURNS}")
    return factory


def _from_file(path: str) -> Any:
    """Import a file as Python runs it: under its own name, with the modules beside it importable."""
    file = Path(path)
    if not file.is_file():
        raise ImportError(f"there is no file {path}")
    sys.path.insert(0, str(file.parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = sys.modules[file.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _traced(error: Exception) -> str:
    """Return an error of the user's code with its type, and the file and line that raised it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
