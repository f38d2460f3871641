"""The C sources beside this file as a shared library, compiled once for each machine and version."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...cache import folder

FLAGS = ("-O2", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared")
"""No contraction: sums must be those of the same search in Python, to the bit."""
SECONDS = 60
"""Time for the compiler."""

log = logging.getLogger("autopar")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library; None, with a line in the log, where there is no C compiler (`CC`, or cc) or what it makes does not
    load."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        log.info("no C compiler is found: plans are searched for in Python, in fewer steps")
        return None
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    about = [compiler, *FLAGS, platform.machine(), platform.system(), *platform.libc_ver()]
    key = hashlib.sha256("\0".join([*about, *(source.read_text() for source in sources)]).encode())
    path = folder() / f"search-{key.hexdigest()[:16]}.so"
    try:
        if not path.exists():
            _compile(compiler, [str(source) for source in sources if source.suffix == ".c"], path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        log.warning("plans are searched for in Python, in fewer steps, for %s failed: %s", compiler, told)
        return None


def _compile(compiler: str, sources: list[str], path: Path) -> None:
    """Make the library so that another process sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        made = Path(own) / path.name
        command = [compiler, *FLAGS, "-o", str(made), *sources, "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
        os.replace(made, path)
