"""JSON files: a reader that refuses invalid ones in one sentence, and frozen dataclasses to JSON and back, by their
type hints. Files are data, never pickles."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from ..errors import AutoparError, PlanError
from .graph import Argument, Const, Ref

T = TypeVar("T")

_KEYS = {"cluster": "run", "clusters": "runs"}
"""Fields with another name in files."""
_WIDTH = 400
"""Limit on the columns of a line of a file with more than one entry: most tasks, values and transfers take one line."""

LARGEST = 10**36
"""Limit on whole numbers in files, above any sum in a graph file, so that arithmetic on them stays finite."""


def save(value: Any, file_format: str, path: str | PathLike[str]) -> None:
    """Write a dataclass to a JSON file of a format such as `autopar plan 1`, in which its key is `plan`."""
    key = file_format.split()[1]
    Path(path).write_text(_lines({"format": file_format, key: encode(value)}) + "\n")


def _lines(data: Any, indent: str = "") -> str:
    """Return JSON text in which objects and lists that fit on a line of `_WIDTH` columns are on one line."""
    line = json.dumps(data)
    if len(indent) + len(line) < _WIDTH or not data or not isinstance(data, (dict, list)):
        return line
    deeper = f"{indent} "
    if isinstance(data, dict):
        rows = [f"{json.dumps(key)}: {_lines(item, deeper)}" for key, item in data.items()]
    else:
        rows = [_lines(item, deeper) for item in data]
    inside = ",\n".join(deeper + row for row in rows)
    return f"{line[0]}\n{inside}\n{indent}{line[-1]}"


def load(
    kind: type[T], file_format: str, path: str | PathLike[str], error: type[AutoparError] = PlanError
) -> T:
    """Read the dataclass `kind` from a file written by `save`; `error` or PlanError says what is wrong with it."""
    key = file_format.split()[1]
    way = f"write one with {key}.save({str(path)!r}), never a pickle"
    data = read_json(path, way, error)
    require_format(data, file_format, str(path), way, error)
    return decode(kind, data.get(key), str(path))


def require_format(data: Any, file_format: str, called: str, way: str, error: type[AutoparError]) -> None:
    """Raise `error` if JSON data is of no format of autopar's, of another one, or of another version of it."""
    written = data.get("format") if isinstance(data, Mapping) else None
    if written == file_format:
        return
    kind, version = file_format.rsplit(" ", 1)
    if isinstance(written, str) and written.startswith(f"{kind} "):
        raise error(
            f"{called} is of version {short(written.removeprefix(f'{kind} '))}, and this autopar reads version "
            f"{version} of {kind!r}; {way}"
        )
    problem = f"it says {short(written)}" if written is not None else "it has no 'format'"
    raise error(f"{called} is not an {file_format!r} file: {problem}; {way}")


def encode(value: Any) -> Any:
    """Encode a dataclass as JSON data: dataclasses as objects, tuples as lists."""
    if isinstance(value, Ref):
        return {"ref": value.value}
    if isinstance(value, Const):
        return {"const": value.text}
    if dataclasses.is_dataclass(value):
        return {
            _KEYS.get(field.name, field.name): encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
            and getattr(value, field.name) != field.default
            and field.metadata.get("saved", True)
        }
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Sequence):
        return [encode(item) for item in value]
    raise TypeError(f"cannot save {type(value).__name__}: {value!r}")


def decode(kind: type[T], data: Any, where: str = "file") -> T:
    """Decode JSON data into the dataclass `kind`; PlanError names the field that does not fit."""
    try:
        return cast(T, _decode(kind, data, where))
    except RecursionError:
        raise PlanError(f"{where} is nested too deeply; read what `save` wrote") from None


def _decode(kind: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _noun(kind, data, where)
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, Sequence):
        if not isinstance(data, list):
            raise PlanError(f"{where}: expected a list, found {short(data)}")
        if origin is Sequence or (len(options) == 2 and options[1] is Ellipsis):
            options = (options[0],) * len(data)
        if len(options) != len(data):
            raise PlanError(f"{where}: expected {len(options)} entries, found {len(data)}")
        pairs = zip(options, data, strict=True)
        return tuple(_decode(option, item, f"{where}[{i}]") for i, (option, item) in enumerate(pairs))
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        return _decode(rest[0], data, where) if len(rest) == 1 else _argument(data, where)
    if origin is typing.Literal:
        if data not in options:
            raise PlanError(f"{where}: {short(data)} is none of {', '.join(map(repr, options))}")
        return data
    if kind is float:
        return _number(data, where)
    if kind is str:
        return _text(data, where)
    if kind is int:
        # In graphs with random weights, bytes may be fractions.
        if isinstance(data, (int, float)) and not isinstance(data, bool) and abs(data) <= LARGEST:
            return data
    elif isinstance(kind, type) and isinstance(data, kind):
        return data
    raise PlanError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {short(data)}")


def _noun(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise PlanError(f"{where}: expected an object for {kind.__name__}, found {short(data)}")
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise PlanError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(hints))}")
    names = {_KEYS.get(field.name, field.name): field.name for field in dataclasses.fields(kind)}
    values = {names[key]: _decode(hints[key], item, f"{where}.{key}") for key, item in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise PlanError(f"{where}: {error}") from None


def _number(data: Any, where: str) -> float:
    """Decode a float; non-finite values are written as {"float": "inf"}, which is JSON."""
    if isinstance(data, dict) and data.get("float") in ("nan", "inf", "-inf"):
        return float(data["float"])
    if isinstance(data, (int, float)) and not isinstance(data, bool) and abs(data) <= sys.float_info.max:
        return float(data)
    raise PlanError(f"{where}: expected a number, found {short(data)}")


def _text(data: Any, where: str) -> str:
    if isinstance(data, str) and whole(data):
        return data
    raise PlanError(f"{where}: expected text, found {short(data)}")


def _argument(data: Any, where: str) -> Argument:
    if isinstance(data, list):
        return tuple(_argument(item, where) for item in data)
    if isinstance(data, dict):
        if "ref" in data:
            return Ref(_text(data["ref"], where))
        if "const" in data:
            return Const(_text(data["const"], where))
        if "float" in data:
            return _number(data, where)
        if "complex" in data and isinstance(data["complex"], list) and len(data["complex"]) == 2:
            return complex(*(_number(part, where) for part in data["complex"]))
    if data is None or isinstance(data, (bool, int, float, str)):
        return cast(Argument, data)
    raise PlanError(f"{where}: {short(data)} is not an argument of a task")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    names = {
        field.name for field in dataclasses.fields(kind) if field.init and field.metadata.get("saved", True)
    }
    hints = typing.get_type_hints(kind)
    return {_KEYS.get(name, name): hint for name, hint in hints.items() if name in names}


def read_json(path: str | PathLike[str], way: str, error: type[AutoparError] = PlanError) -> Any:
    """Return the data of a JSON file, with or without a byte order mark.

    `way`: how to make such a file, for the error. Raises `error` for a file that cannot be read, is empty, is
    not text or JSON, is nested too deeply, or has a number of thousands of digits. Also for an object with a
    duplicate key, because one of its values would be ignored.
    """
    repeated: list[tuple[dict[str, Any], str]] = []

    def row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append((entry, next(key for at, key in enumerate(keys) if key in keys[:at])))
        return entry

    try:
        contents = Path(path).read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise error(f"{path} cannot be read ({fault.strerror}); give the path of an existing file") from None
    except UnicodeDecodeError:
        raise error(f"{path} is not text; {way}") from None
    except ValueError as fault:
        raise error(f"{str(path)!r} is not a path ({fault}); give the path of a file") from None
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
    for entry, key in repeated:
        where = _where(data, entry)
        if where is not None:
            raise error(f"{path} has {key!r} twice in {where or 'its object'}; leave one of them out")
    return data


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
    places: list[tuple[str, Any]] = [("", data)]
    for where, value in places:
        if value is sought:
            return where
        if isinstance(value, dict):
            places += [(f"{where}.{key}" if where else key, item) for key, item in value.items()]
        elif isinstance(value, list):
            places += [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    return None
