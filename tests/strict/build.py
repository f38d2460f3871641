"""The device as a shared library, compiled once for each torch, compiler and state of its sources."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from autopar.system.cache import folder

SOURCES = Path(__file__).parent / "device"
TORCH = Path(torch.__file__).parent
FLAGS = (
    "-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-w",
    f"-D_GLIBCXX_USE_CXX11_ABI={torch._C._GLIBCXX_USE_CXX11_ABI:d}",
    "-isystem", str(TORCH / "include"), "-isystem", str(TORCH / "include" / "torch" / "csrc" / "api" / "include"),
)  # fmt: skip
LIBRARIES = ("-shared", "-L", str(TORCH / "lib"), "-lc10", "-ltorch_cpu")
SECONDS = 900
"""Time for the compiler, on a machine that is busy."""


class CompilerError(Exception):
    """The device does not compile, and what to do about it."""


class NoCompilerError(CompilerError):
    """There is nothing here to compile the device with."""


def built() -> Path:
    """The library's path. Compiles it where that has not been done, half a minute of CPU; processes that ask at once
    wait for the one that compiles. Raises NoCompilerError, and CompilerError for what the compiler says."""
    if platform.system() != "Linux":
        raise NoCompilerError(
            f"the strict accelerator needs Linux (memfd_create), and this is {platform.system()}"
        )
    compiler = _compiler()
    path = folder() / f"strict-{_key(compiler)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _compile(compiler, path)
    return path


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "").strip() or "c++")
    found = shutil.which(command[0])
    if found is None:
        raise NoCompilerError(
            f"the strict accelerator needs a C++20 compiler, and {command[0]!r} is not found; install one "
            "(apt install g++) or name it in CXX"
        )
    return [found, *command[1:]]


def _key(compiler: list[str]) -> str:
    """A hash of all that the library depends on."""
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, errors="replace")
    about = [*compiler, said.stdout, *FLAGS, *LIBRARIES, torch.__version__, str(torch.version.git_version)]
    about += [platform.machine(), *platform.libc_ver()]
    about += [f"{source.name}\n{source.read_text()}" for source in sorted(SOURCES.glob("*.*"))]
    return hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: list[str], path: Path) -> None:
    """Make the library so that another process sees all of it or none.

    The headers of torch take longest: all sources are compiled as one, but for the one that takes as long as the rest.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        alone = SOURCES / "autocast.cpp"
        others = Path(own) / "others.cpp"
        others.write_text(
            "".join(f'#include "{each}"\n' for each in sorted({*SOURCES.glob("*.cpp")} - {alone}))
        )
        sources = (alone, others)
        objects = [str(Path(own) / f"{source.stem}.o") for source in sources]
        commands = [
            [*compiler, *FLAGS, "-c", str(source), "-o", made] for source, made in zip(sources, objects)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        made = Path(own) / path.name
        _run([*compiler, *objects, *LIBRARIES, "-o", str(made)])
        os.replace(made, path)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines()
        raise CompilerError(
            f"the strict accelerator does not compile with {command[0]} and torch {torch.__version__}: "
            f"{lines[0] if lines else error}; CXX names another compiler, and this shows all that it says: "
            f"{shlex.join(command)}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"{command[0]} took more than {SECONDS} s: {shlex.join(command)}") from error
