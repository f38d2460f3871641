"""The local search in C: sources, and the shared library built from them on installation (pyproject.toml)."""

from __future__ import annotations

import ctypes
import functools
import logging
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

HERE = Path(__file__).parent

log = logging.getLogger("autopar")


def _loaded(here: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library in a folder and its path, or None and the error in one line."""
    path = next((path for suffix in EXTENSION_SUFFIXES if (path := here / f"_search{suffix}").exists()), None)
    if path is None:
        return None, "was not built when autopar was installed"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"does not load ({error})"
    built = path.stat().st_mtime
    # In a clone, sources change after a build; an installation writes all files at once.
    if _in_clone(here) and any(source.stat().st_mtime > built for source in here.glob("*.[ch]")):
        return None, f"was built before its sources were changed ({path})"
    return library, str(path)


def _in_clone(here: Path) -> bool:
    return (here.parents[2] / "pyproject.toml").exists()


def _status(library: ctypes.CDLL | None, about: str, here: Path) -> str:
    """Return one line on the search in use, with the command to build the native one if it is missing."""
    if library:
        return f"native search: {about}"
    again = (
        f"-e {here.parents[2]}" if _in_clone(here) else "--force-reinstall --no-deps --no-cache-dir autopar"
    )
    return (
        f"plans come from list schedules and may be longer than need be, for the native search {about}; "
        f"install a C compiler if there is none (apt install gcc), then type: pip install {again}"
    )


LIBRARY, _ABOUT = _loaded(HERE)
"""The native search; None if it is not built or does not load."""
STATUS = _status(LIBRARY, _ABOUT, HERE)


def searches() -> bool:
    """Return True if there is a native search; otherwise log once how to build it."""
    if LIBRARY is None:
        _warn()
    return LIBRARY is not None


@functools.cache
def _warn() -> None:
    log.warning(STATUS)
