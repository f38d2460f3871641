"""JSON reader that refuses invalid files in one sentence with the place of the error."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import AutoparError, PlanError


def load(path: str | PathLike[str], way: str, error: type[AutoparError] = PlanError) -> Any:
    """Return the data of a JSON file, with or without a byte order mark.

    `way`: how to make such a file, for the error. Raises `error` for a file that cannot be read, is empty, is
    not text or JSON, is nested too deeply, or has a number of thousands of digits. Also for an object with a
    duplicate key, because one of its values would be ignored.
    """
    twice: list[tuple[dict[str, Any], str]] = []

    def row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice.append((found, next(key for at, key in enumerate(keys) if key in keys[:at])))
        return found

    contents = _text(path, way, error)
    if not contents.strip():
        raise error(f"{path} is empty; {way}")
    try:
        data = json.loads(contents, object_pairs_hook=row)
    except RecursionError:
        raise error(f"{path} is nested too deeply; {way}") from None
    except json.JSONDecodeError as fault:
        raise error(f"{path} is not JSON ({fault}); {way}") from None
    except ValueError:
        raise error(f"{path} has a number of too many digits to be one of seconds or bytes; {way}") from None
    for found, key in twice:
        where = _where(data, found)
        if where is not None:
            raise error(f"{path} has {key!r} twice in {where or 'its object'}; leave one of them out")
    return data


def _text(path: str | PathLike[str], way: str, error: type[AutoparError] = PlanError) -> str:
    """Return the text of a file without its byte order mark. Raises `error` if it cannot be read or is not text."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise error(f"{path} cannot be read ({fault.strerror}); give the path of an existing file") from None
    except UnicodeDecodeError:
        raise error(f"{path} is not text; {way}") from None
    except ValueError as fault:
        raise error(f"{str(path)!r} is not a path ({fault}); give the path of a file") from None


def short(value: Any) -> str:
    """Return a value's repr in at most 60 characters."""
    try:
        shown = repr(value)
    except (RecursionError, ValueError):
        # Nested too deeply, or a number of more digits than Python writes.
        return f"a value of type {type(value).__name__} too large to show"
    return shown if len(shown) <= 60 else shown[:57] + "…"


def whole(value: str) -> bool:
    """Return True if text can be written to a file or screen: it has no lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _where(data: Any, sought: dict[str, Any]) -> str | None:
    """Return the path from `data` to an object in it, such as `tasks[3].seconds`; None if it is not there."""
    found: list[tuple[str, Any]] = [("", data)]
    for where, value in found:
        if value is sought:
            return where
        if isinstance(value, dict):
            found += [(f"{where}.{key}" if where else key, item) for key, item in value.items()]
        elif isinstance(value, list):
            found += [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    return None
