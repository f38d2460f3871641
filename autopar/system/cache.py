"""Cache of this machine's measurements, as JSON files in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

log = logging.getLogger("autopar")

FORMAT = "autopar measurements 1"


def folder() -> Path:
    """Return the folder of measurements; `AUTOPAR_CACHE` overrides it."""
    return Path(os.environ.get("AUTOPAR_CACHE") or platformdirs.user_cache_dir("autopar"))


def file_for(kind: str, about: Sequence[Any]) -> Path:
    """Return the file for measurements of one `kind`, valid for this machine and all that `about` lists (versions,
    devices)."""
    identity = [platform.node(), platform.machine(), processor(), os.cpu_count(), *about]
    key = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()[:16]
    return folder() / f"{kind}-{key}.json"


def load(path: Path) -> dict[str, Any]:
    """Return the entries written by `store`; empty if there is no valid file."""
    try:
        data = json.loads(path.read_text())
        if data["format"] == FORMAT and isinstance(data["entries"], dict):
            return dict(data["entries"])
        raise ValueError(f"format is {data['format']!r}, not {FORMAT!r}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("measurements in %s are ignored and taken again: %s", path, error)
        return {}


def store(path: Path, entries: dict[str, Any]) -> None:
    """Write entries atomically; if the folder is not writable, only log it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"format": FORMAT, "entries": entries}, file, indent=1)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as error:
        log.warning("%s", _unwritable(error))


def note() -> str:
    """Return the sentence that says where measurements are kept, or why they are not."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            return f"measurements are kept in {folder()}"
    except OSError as error:
        return _unwritable(error)


def _unwritable(error: OSError) -> str:
    return f"measurements are not kept: {error}; set AUTOPAR_CACHE to a folder that can be written"


def is_figure(value: Any) -> bool:
    """Return True if a stored value is valid as seconds, bytes or a rate."""
    return isinstance(value, (int, float)) and 0 < value < float("inf")


def clear() -> None:
    """Delete all measurements of this machine."""
    for path in folder().glob("*-*.json"):
        path.unlink(missing_ok=True)


def processor() -> str:
    """Return the CPU's model name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
