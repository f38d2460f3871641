"""The accelerator under test, and models, machines and placements to test it with. It is the one that this process has
when the module is imported: see `--accelerator` in `conftest.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine

# In TF32, which is the default in cuDNN, nothing equals what a CPU computes.
torch.backends.cudnn.allow_tf32 = False
_here = torch.accelerator.current_accelerator(check_available=True)
KIND = _here.type if _here else "cuda"
FIRST = f"{KIND}:0"
LIMIT = 1e-4
"""Largest max|Δ| ÷ max(1, max|reference|) of a case in float32, over a few steps of training."""
ROWS = 16
COUNT = min(2, torch.accelerator.device_count()) or 2
"""Accelerators of `machine` if nothing else is said."""


def machine(devices: int = COUNT, memory: int = 1 << 30) -> Machine:
    """A CPU and accelerators that are all equally fast; `memory` in bytes of each. Nothing is probed."""
    names = ["cpu", *(f"{KIND}:{index}" for index in range(devices))]
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    made = [Device(name, name.partition(":")[0], memory_bytes=memory, launch_s=1e-4) for name in names]
    return Machine(tuple(made), tuple(links))


def sleep(seconds: float) -> None:
    """Keep the current stream busy, and the host free, for about this long."""
    torch.get_device_module(KIND)._sleep(int(seconds * (1e6 if KIND == "strict" else 2e9)))


def synchronize() -> None:
    """Wait for all that the accelerators have been given."""
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


class MLP(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Towers(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width))
        self.right = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width))
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.out(torch.cat([self.left(x), self.right(x)], 1))


def in_turn(costed) -> dict[str, str]:
    """Runs on all devices by turns: as many transfers as there can be."""
    return _by_turns(costed, [device.name for device in costed.machine.devices])


def accelerators_in_turn(costed) -> dict[str, str]:
    """Runs on the accelerators by turns: transfers between accelerators."""
    return _by_turns(costed, [device.name for device in costed.machine.devices if device.kind != "cpu"])


def _by_turns(costed, names: list[str]) -> dict[str, str]:
    return {
        cluster.name: names[i % len(names)]
        for i, cluster in enumerate(costed.clusters)
        if cluster.name != "loss"
    }


POLICIES: dict[str, Any] = {
    "in turn": in_turn,
    "accelerators in turn": accelerators_in_turn,
    "round robin": "round_robin",
}


def error(found: Any, expected: Any) -> float:
    """max|Δ| ÷ max(1, max|reference|) of the worst tensor of two lists; infinite where a number is not finite."""
    found, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (found, expected))
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = a.detach().cpu().double(), b.detach().cpu().double()
        if a.shape != b.shape or not bool(a.isfinite().all()):
            return float("inf")
        if a.numel():
            worst = max(worst, float((a - b).abs().max()) / max(1.0, float(b.abs().max())))
    return worst
