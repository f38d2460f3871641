"""`python -m autopar doctor`: devices of this machine, their rates, and commands to try."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from itertools import permutations

import torch

from ..costs.detect import accelerators, detect
from ..ir.hardware import BUSES, CHIPS
from ..planner import native
from ..system import cache, versions
from ..system.process import KEPT_BYTES, keep_freed_memory
from ..system.text import size, table
from . import Parser


def main(argv: Sequence[str]) -> int:
    """Detect the devices of this machine, measure those not measured yet, and print them; return 0 on success."""
    parser = Parser(prog="python -m autopar doctor", description=main.__doc__)
    parser.add_argument(
        "devices", nargs="*", help='device names such as cpu "cpu*2" cuda:0; default: all devices'
    )
    parser.add_argument("--again", action="store_true", help="discard stored measurements, measure again")
    chosen = parser.parse_args(argv)
    if chosen.again:
        cache.clear()
    present = accelerators()
    stand_ins = () if present else ("emulated:0", "emulated:1")
    names = chosen.devices or ["cpu", *present, *stand_ins]
    print(f"python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    wrong = "" if versions.supported(torch.__version__) else f"; this one is not: {versions.TO_TYPE}"
    print(f"{versions.SUPPORTED} are supported{wrong}")
    print(cache.kept())
    print(native.TOLD)
    why = keep_freed_memory()
    memory = (
        f"returned to the system at the C library's discretion: {why}"
        if why
        else f"kept, up to {size(KEPT_BYTES)}"
    )
    print(f"memory that the process frees is {memory}")
    print()
    print(detect(names))
    if len(present) > 1:
        print(f"\npeer access: {_peers(present)}")
    elif not present:
        print("\nno accelerator is here: emulated:0 and emulated:1 are worker threads that emulate two")
    print("\nchips known to Machine.declare and Machine.emulate (datasheet figures, dense)\n")
    print(chips())
    print("\nbuses known to them (one direction)\n")
    print(buses())
    quoted = ", ".join(f'"{name}"' for name in names)
    print("\nwhat to type")
    print(f"  fast = autopar.compile(model, [{quoted}])")
    print(
        '  autopar.plan(model, autopar.Machine.declare("cpu", "h100-sxm", "h100-sxm"), example_inputs=(x,))'
    )
    return 0


def chips() -> str:
    """Return the table of declared chips."""
    rows: list[tuple[str, ...]] = [
        ("chip", "memory", "bandwidth", "float32", "bfloat16", "host bus", "peer bus", "source")
    ]
    for chip in CHIPS.values():
        rates = dict(chip.tflops)
        memory = size(chip.memory_bytes) if chip.memory_bytes else "as fitted"
        speeds = [f"{rates[dtype]:.4g} TFLOP/s" for dtype in ("float32", "bfloat16")]
        links = chip.bus or "-", chip.peer_bus or "-"
        rows.append((chip.name, memory, f"{size(chip.bytes_per_s)}/s", *speeds, *links, chip.source))
    return table(rows, right=(1, 2, 3, 4), widest=110)


def buses() -> str:
    """Return the table of declared buses."""
    rows = [("bus", "datasheet", "reached", "latency", "source")]
    for bus in BUSES.values():
        latency = f"{bus.latency_s * 1e6:.0f} µs"
        rows.append((bus.name, f"{size(bus.bytes_per_s)}/s", f"{size(bus.reached)}/s", latency, bus.source))
    return table(rows, right=(1, 2, 3), widest=110)


def _peers(names: Sequence[str]) -> str:
    module = torch.get_device_module(torch.device(names[0]).type)
    if not hasattr(module, "can_device_access_peer"):
        return "not told by this kind of device"
    pairs = permutations(enumerate(names), 2)
    able = [f"{a} → {b}" for (i, a), (j, b) in pairs if module.can_device_access_peer(i, j)]
    return ", ".join(able) or "none; copies between accelerators pass through host memory"
