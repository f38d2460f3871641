"""From a fresh process to the first result of a two-layer MLP, against torch.export alone and TensorTorrent; and
captures of larger models, against torch.export and torch.compile alone.

Each contestant is a process of its own; seconds are counted inside it from before `import torch` on, those of captures
from the call on, after one of a small model.
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
_WARM = """
import time
import torch
import autopar
from torch import nn
torch.manual_seed(0)
small = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
"""
_MODELS = {
    "MLP, 8 layers": "nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(64, 64), nn.ReLU())]), "
    "torch.randn(8, 64)",
    "12 convolutions": "nn.Sequential(*[part for _ in range(12) for part in "
    "(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))]), torch.randn(1, 8, 32, 32)",
    "transformer, 4 layers": "nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 4, "
    "enable_nested_tensor=False), torch.randn(2, 16, 64)",
    "LSTM, 2 layers": "nn.LSTM(32, 32, 2), torch.randn(16, 4, 32)",
}
_CAPTURES = {
    "torch.export alone": "torch.export.export(given, (x,), strict=False)",
    "torch.export by Dynamo": "torch.export.export(given, (x,), strict=True)",
    "torch.compile, nothing compiled": "torch.compile(given, backend=lambda module, _: module.forward)(x)",
    "autopar": "autopar.compile(given, ['cpu'])(x)",
}
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
    data = report(samples, base="torch.export alone", scale=1, unit="s")
    return {**data, "captures": {name: _captures(name, rounds or 5) for name in _MODELS}}


def _captures(name: str, rounds: int) -> dict[str, Any]:
    samples: dict[str, list[float]] = {contestant: [] for contestant in _CAPTURES}
    for _ in range(rounds):
        for contestant, call in _CAPTURES.items():
            samples[contestant].append(_seconds(_capture(_MODELS[name], call)))
    print(f"\nFirst call of {name}, the process being warm")
    return report(samples, base="torch.export alone", unit="ms")


def _capture(model: str, call: str) -> str:
    small = f"given, x = small, torch.randn(2, 4)\n    {call}\n    {call}"
    large = f"given, x = model.eval(), example\n    start = time.perf_counter()\n    {call}"
    return f"{_WARM}model, example = {model}\nwith torch.no_grad():\n    {small}\n    {large}{_END}"


def _seconds(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not words:
        raise RuntimeError(f"a contestant failed:\n{code}\n{done.stderr[-2000:]}")
    return float(words[-1][1])
