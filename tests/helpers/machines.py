"""Devices of this machine on which tests place models, and options that make a plan use all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from autopar.ir.costed import CostedGraph
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine

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


def capped(cap: int | None, count: int = 2, host: float = 1e7) -> Machine:
    """A CPU of `host` FLOP/s and stand-ins for accelerators of 1e12, each of which may hold `cap` bytes."""
    rates = {"flops": (("float32", 1e12),), "bytes_per_s": 1e12}
    devices = [Device("cpu", "cpu", flops=(("float32", host),), bytes_per_s=1e9)]
    devices += [Device(f"emulated:{at}", "emulated", memory_bytes=cap, **rates) for at in range(count)]
    names = [device.name for device in devices]
    links = tuple(Link(a, b, 1e-6, 1e10, None) for a in names for b in names if a != b)
    return Machine(tuple(devices), links, clock="declared", slow_down=10.0)


def away(costed: CostedGraph) -> dict[str, str]:
    """Each part on an accelerator of its own, what is not in parts on the first where it can be there."""
    names = [device.name for device in costed.machine.devices[1:]]
    place = dict(zip(dict.fromkeys(task.part for task in costed.graph.tasks if task.part), names))
    found = {task.name: place.get(task.part, names[0]) for task in costed.graph.tasks}
    at = {name: costed.index[name] for name in names}
    return {
        task: to
        for task, to in found.items()
        if task in costed.cost and costed.cost[task].seconds[at[to]] is not None
    }


def machine(devices: int = 2, **caps: int) -> Machine:
    """A CPU and some stand-ins for accelerators on the real clock, whose speed nobody says; `emulated0=` caps one."""
    names = ["cpu", *(f"emulated:{index}" for index in range(devices))]
    made = [
        Device(name, "cpu" if name == "cpu" else "emulated", memory_bytes=caps.get(name.replace(":", "")))
        for name in names
    ]
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    return Machine(tuple(made), tuple(links))
