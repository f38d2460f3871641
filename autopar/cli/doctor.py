"""`python -m autopar doctor`: what this machine has for autopar, what is missing, and what to type for it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from .. import system
from ..costs.detect import accelerators, detect
from ..ir.hardware import BUSES, CHIPS
from ..ir.serialize import encode
from ..planner import native
from ..runtime.kernels import LIBRARIES
from ..system import cache
from ..system.process import KEPT_BYTES, keep_freed_memory
from ..system.text import COLUMNS, counted, size, table
from . import Parser

READY = "ready"


def main(argv: Sequence[str]) -> int:
    """Show the devices of this machine, measured once, and what autopar finds on it; return 0 on success."""
    parser = Parser(prog="python -m autopar doctor", description=main.__doc__)
    parser.add_argument(
        "devices", nargs="*", help='device names such as cpu "cpu*2" cuda:0; default: all devices'
    )
    parser.add_argument("--again", action="store_true", help="discard stored measurements, measure again")
    parser.add_argument("--chips", action="store_true", help="show the declared chips and buses instead")
    parser.add_argument("--json", action="store_true", help="print JSON, for a bug report")
    options = parser.parse_args(argv)
    if options.chips:
        print("chips that Machine.declare and Machine.emulate know (datasheet figures, dense)\n")
        print(chips())
        print("\nbuses between them (one direction)\n")
        print(buses())
        print("\nThe sources are in autopar/ir/hardware, one for each row of chips.csv and buses.csv.")
        return 0
    if options.again:
        cache.clear()
    present = accelerators()
    names = options.devices or ["cpu", *present]
    report, machine = _report(), detect(names)
    if options.json:
        print(json.dumps({**report, "machine": encode(machine)}, indent=1))
        return 0
    print(machine)
    if not present:
        print('\nno accelerator is here; "emulated:0" emulates one by a worker thread')
    for title, facts in report.items():
        print(f"\n{title}")
        print(_lines(facts))
    quoted = ", ".join(f'"{name}"' for name in names)
    commands = {
        f'autopar.compile(model, [{quoted}], kernels="auto")': "all devices and libraries above",
        "python -m autopar doctor --chips": "chips that you can plan for without having them",
        "python -m autopar doctor --json": "all of this, for a bug report",
    }
    print(f"\nwhat to type\n{_lines(commands)}")
    return 0


def _lines(facts: Mapping[str, str]) -> str:
    """Return names and their facts in two columns, the second one wrapped."""
    left = max(map(len, facts)) + 4
    wrap = textwrap.TextWrapper(COLUMNS, subsequent_indent=" " * left, break_long_words=False)
    return "\n".join(wrap.fill(f"  {name}".ljust(left) + fact) for name, fact in facts.items())


def _report() -> dict[str, dict[str, str]]:
    """Return what this machine has and what to type for what it lacks, by section and name."""
    wrong = "" if system.supported(torch.__version__) else f"; this one is not: {system.TO_TYPE}"
    refusal = keep_freed_memory()
    return {
        "versions": {
            "autopar": system.VERSION,
            "python": f"{platform.python_version()}, {platform.platform(terse=True)}",
            "torch": f"{torch.__version__}, {counted(torch.get_num_threads(), 'thread')}; "
            f"{system.SUPPORTED} are supported{wrong}",
        },
        "kernel libraries": {
            name: library.missing() or _version(name) for name, library in LIBRARIES.items()
        },
        "tools": {
            "C++ compiler": _compiler(),
            "native search": READY if native.LIBRARY else native.STATUS,
            ".png pictures": READY if find_spec("cairosvg") else "pip install 'autopar[png]'",
        },
        "caches": {
            "autopar": cache.note(),
            "inductor": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
            or f"{tempfile.gettempdir()}/torchinductor_…; TORCHINDUCTOR_CACHE_DIR moves it",
            "freed memory": f"returned to the system: {refusal}"
            if refusal
            else f"kept, up to {size(KEPT_BYTES)}",
        },
    }


def _version(library: str) -> str:
    try:
        return f"{READY}, {version(library)}"
    except PackageNotFoundError:
        return READY  # a part of torch


def _compiler() -> str:
    """Return the path and the version of the C++ compiler."""
    path = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
    if path is None:
        return "none is on PATH: apt install g++ (inductor compiles CPU kernels with it)"
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{READY}, {path}, {answer.splitlines()[0] if answer else 'of unknown version'}"


def chips() -> str:
    """Return the table of declared chips."""
    rows: list[tuple[str, ...]] = [
        ("chip", "memory", "bandwidth", "float32", "bfloat16", "host bus", "peer bus")
    ]
    for chip in CHIPS.values():
        rates = dict(chip.tflops)
        memory = size(chip.memory_bytes) if chip.memory_bytes else "as fitted"
        speeds = [f"{rates[dtype]:.4g} TFLOP/s" for dtype in ("float32", "bfloat16")]
        links = chip.bus or "-", chip.peer_bus or "-"
        rows.append((chip.name, memory, f"{size(chip.bytes_per_s)}/s", *speeds, *links))
    return table(rows, right=(1, 2, 3, 4))


def buses() -> str:
    """Return the table of declared buses."""
    rows = [("bus", "datasheet", "reached", "latency")]
    for bus in BUSES.values():
        latency = f"{bus.latency_s * 1e6:.0f} µs"
        rows.append((bus.name, f"{size(bus.bytes_per_s)}/s", f"{size(bus.reached)}/s", latency))
    return table(rows, right=(1, 2, 3))
