"""Devices of this machine on which tests place models, and options that make a plan use all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

TWO = ["cpu", "emulated:0"]
THREE = [*TWO, "emulated:1"]

MACHINES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "cpu": (["cpu"], {}),
    "lanes": (["cpu*2"], {"policy": "round_robin", "split": 2}),
    "devices": (THREE, {"policy": "round_robin", "split": None}),
    "halves": (THREE, {"policy": "round_robin", "split": 2}),
    "library": (["cpu"], {"kernels": "aot_eager"}),
}
"""Devices and options by name: one lane, two lanes of the CPU, layers in turn on three devices, the batch in two,
and kernels of a backend of torch.compile."""


def placed(where: str, model: nn.Module) -> dict[str, Any]:
    """Arguments of `compile` that place a model on one of `MACHINES`."""
    devices, options = MACHINES[where]
    if where == "devices":
        options = {**options, "pins": turns(model, devices)}
    return {"devices": devices, **options}


def turns(model: nn.Module, devices: Sequence[str] = TWO) -> dict[str, str]:
    """Pins that put the innermost modules of a model on devices by turns, the second first; one with a weight of an
    earlier one is beside that. Without pins, small tasks that read each other would stay together."""
    pins: dict[str, str] = {}
    homes: dict[int, str] = {}
    for path, module in model.named_modules():
        if path and not list(module.children()):
            weights = [*map(id, module.parameters())]
            tied = (homes[weight] for weight in weights if weight in homes)
            pins[path] = next(tied, devices[(len(pins) + 1) % len(devices)])
            homes.update(dict.fromkeys(weights, pins[path]))
    return pins
