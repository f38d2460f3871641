"""The setting of a row: sizes for a large GPU and the devices as measured; or tiny sizes and declared devices for any
other accelerator, on which the row can be tried beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from autopar.costs.detect import detect
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine


@dataclass(frozen=True)
class Sizes:
    """Sizes of models and batches.

    blocks, width, rows: feed-forward blocks, and rows of a batch.
    copied_rows: rows with which products take about as long as the copies of the weights.
    trained_blocks, trained_rows: blocks to train, and rows with which a backward takes about as long as the update on
        the CPU.
    towers, layers, narrow: chains of short operators side by side, layers of each and their width.
    mlp: width and rows of the two-layer MLP.
    """

    blocks: int = 16
    width: int = 2048
    rows: int = 512
    copied_rows: int = 1536
    trained_blocks: int = 6
    trained_rows: int = 8192
    towers: int = 4
    layers: int = 12
    narrow: int = 512
    mlp: tuple[int, int] = (4096, 8192)


TINY = Sizes(
    blocks=10, width=64, rows=16, copied_rows=16, trained_blocks=2, trained_rows=16,
    towers=2, layers=2, narrow=16, mlp=(32, 64),
)  # fmt: skip


def sizes(gpu: str) -> Sizes:
    """Return the sizes for a device."""
    return Sizes() if torch.device(gpu).type == "cuda" else TINY


def machine(*names: str, lanes: int = 1) -> Machine:
    """Return the machine of these devices, each accelerator with so many lanes."""
    if any(torch.device(name).type == "cuda" for name in names):
        found = detect(names)
    else:
        links = [Link(a, b, 1e-5, 2e9, f"{a} to {b}") for a in names for b in names if a != b]
        found = Machine(tuple(map(_declared, names)), tuple(links))
    several = (device if device.traits.host else replace(device, lanes=lanes) for device in found.devices)
    return replace(found, devices=tuple(several))


def _declared(name: str) -> Device:
    """Return a device, whatever it is here: an accelerator to which weights are worth a copy, and optimizers' state is
    not."""
    host = torch.device(name).type == "cpu"
    rate, launch = (1e10, 2e-5) if host else (1e12, 1e-5)
    kind = torch.device(name).type
    figures = {"flops": (("float32", rate),), "bytes_per_s": 1e10, "launch_s": launch}
    return Device(name, kind, memory_bytes=1 << 30, **figures)
