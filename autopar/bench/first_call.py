"""From a fresh process to the first result of a two-layer MLP, against torch.export alone and TensorTorrent.

Each contestant is a process of its own; seconds are counted inside it from before `import torch` on.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

from .timing import report

_MODEL = """
import time
start = time.perf_counter()
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
x = torch.randn(256, 784)
"""
_END = "\nprint('seconds', time.perf_counter() - start)\n"
_CODE = {
    "torch.export alone": _MODEL + "with torch.no_grad(): torch.export.export(model, (x,), strict=False)" + _END,
    "autopar": _MODEL + "import autopar\nwith torch.no_grad(): autopar.compile(model, ['cpu'])(x)" + _END,
    "autopar, cpu + 2 emulated": _MODEL
    + "import autopar\nwith torch.no_grad(): autopar.compile(model, ['cpu', 'emulated:0', 'emulated:1'])(x)" + _END,
    "eager": _MODEL + "with torch.no_grad(): model(x)" + _END,
}  # fmt: skip
_RIVAL = _MODEL + "import tensortorrent\nwith torch.no_grad(): tensortorrent.compile(model, (x,))(x)" + _END


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return seconds of each contestant, `rounds` (default 5) processes each, interleaved."""
    code = dict(_CODE)
    if importlib.util.find_spec("tensortorrent"):
        code["TensorTorrent"] = _RIVAL
    else:
        print("TensorTorrent is not installed (pip install tensortorrent): left out")
    samples: dict[str, list[float]] = {name: [] for name in code}
    for turn in range((rounds or 5) + 1):
        for name, text in code.items():
            seconds = _seconds(text)
            if turn:
                samples[name].append(seconds)
    return report(samples, base="torch.export alone", scale=1, unit="s")


def _seconds(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not words:
        raise RuntimeError(f"a contestant failed:\n{code}\n{done.stderr[-2000:]}")
    return float(words[-1][1])
