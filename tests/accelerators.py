"""A CPU and two accelerators of whatever kind is here, plans that say which call goes where, and how far answers are
from eager ones."""

from __future__ import annotations

import torch

from autopar.machine import Device, Link, Machine


def count() -> int:
    """Accelerators that torch sees."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def name(index: int) -> str:
    """The accelerator of this index."""
    kind = torch.accelerator.current_accelerator()
    return f"{kind.type if kind else 'cuda'}:{index}"


def machine(memory: int = 1 << 30) -> Machine:
    """The CPU and two accelerators, all linked, with invented figures: nothing is measured."""
    names = ("cpu", name(0), name(1))
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    devices = (Device(n, n.partition(":")[0], memory_bytes=memory, launch_s=1e-4) for n in names)
    return Machine(tuple(devices), tuple(links))


def at(index: int, *rest: str):
    """A policy: calls whose names start with one of `rest` on the first accelerator, others on this one."""

    def place(costed):
        return {run.name: name(0 if run.name.startswith(rest) else index) for run in costed.runs}

    return place


def in_turn(costed):
    """A policy: the CPU and both accelerators by turns."""
    names = [device.name for device in costed.machine.devices]
    return {
        run.name: names[place % len(names)] for place, run in enumerate(costed.runs) if run.name != "loss"
    }


def error(found, expected) -> float:
    """The largest difference of two tensors or sequences of them; infinite where a number is none."""
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype
        apart = (found.detach().cpu().double() - expected.detach().cpu().double()).abs()
        return float(apart.nan_to_num(nan=torch.inf).max()) if apart.numel() else 0.0
    return max(error(a, b) for a, b in zip(found, expected, strict=True))
