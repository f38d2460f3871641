"""The C sources beside this file as a shared library, compiled once for each machine and version."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...system.cache import folder

FLAGS = ("-O2", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared")
"""No contraction: sums must be those of the same search in Python, to the bit."""
SECONDS = 60
"""Time for the compiler."""
SLOWLY = "plans are searched for in Python, in fewer steps: "

log = logging.getLogger("autopar")


def built() -> ctypes.CDLL | None:
    """The library; None where there is no C compiler or what it makes does not load."""
    return _found()[0]


def told() -> str:
    """How plans are searched for on this machine, and what to do where that is not the best way; in one line."""
    return _found()[1]


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    command = _named()
    compiler = shutil.which(command[0])
    if compiler is None:
        why = f"no C compiler {command[0]!r} is found; install one (apt install gcc) or name it in CC"
        log.warning(SLOWLY + why)
        return None, SLOWLY + why
    command = [compiler, *command[1:], *FLAGS]
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    about = [*command, platform.machine(), platform.system(), *platform.libc_ver()]
    key = hashlib.sha256("\0".join([*about, *(source.read_text() for source in sources)]).encode())
    path = folder() / f"search-{key.hexdigest()[:16]}.so"
    try:
        if not path.exists():
            _compile(command, [str(source) for source in sources if source.suffix == ".c"], path)
        return ctypes.CDLL(str(path)), f"plans are searched for in C, by {path}"
    except (OSError, subprocess.SubprocessError) as error:
        why = [*(getattr(error, "stderr", "") or "").splitlines(), str(error)][0]
        why += f"; CC names another compiler than {compiler}, AUTOPAR_CACHE another folder"
        log.warning(SLOWLY + why)
        return None, SLOWLY + why


def _named() -> list[str]:
    """The words of `CC`, or cc."""
    named = os.environ.get("CC", "").strip() or "cc"
    try:
        return shlex.split(named)
    except ValueError:
        # No compiler is called so, which is said then.
        return [named]


def _compile(command: Sequence[str], sources: Sequence[str], path: Path) -> None:
    """Make the library so that another process sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        made = Path(own) / path.name
        subprocess.run(
            [*command, "-o", str(made), *sources, "-lm"],
            check=True, capture_output=True, text=True, errors="replace", timeout=SECONDS,
        )  # fmt: skip
        os.replace(made, path)
