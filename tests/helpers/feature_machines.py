"""Machines and a policy for layers that are cut along features."""

from __future__ import annotations

from autopar.ir.costed import CostedGraph
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine


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
