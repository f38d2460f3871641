"""Machines one does not have: declared from datasheets, to be planned for or to be stood in for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..cores import cores
from ..errors import DeviceError
from ..machine import HANDOFF_S, Device, Link, Machine
from ..pins import parse_bytes
from .buses import Bus, find_bus
from .chips import Chip, find_chip


def declare(
    chips: Sequence[str | Device],
    *,
    bus: str | Sequence[str] | None = None,
    memory: Mapping[str, int | str] | None = None,
) -> Machine:
    """A machine of these chips, to be planned for: CPUs are named `cpu`, accelerators `cuda:0`, `cuda:1`, …

    `bus` names the buses to use in place of the chips' own: a PCIe one replaces the way to the host, an
    NVLink or Infinity Fabric one the way between accelerators. `memory` caps devices by name, in bytes or as
    `"6GiB"`. Raises DeviceError for chips, buses and devices that are not known.
    """
    return replace(_assemble(chips, "cuda", bus, memory), absent=True).check()


def emulate(
    chips: Sequence[str | Device],
    *,
    slow_down: float | str = "auto",
    bus: str | Sequence[str] | None = None,
    memory: Mapping[str, int | str] | None = None,
) -> Machine:
    """A machine of these chips stood in for by this one, on a declared clock.

    Accelerators are `emulated:0`, `emulated:1`, …: worker threads that compute the real values and then sleep
    until the declared chip would have been done, `slow_down` times slower. `"auto"` leaves `slow_down` 0, to
    be chosen from the costs once they are known (`emulation.slow_down_for`). Each lane computes with its
    share of this machine's cores.
    """
    if slow_down != "auto" and not (isinstance(slow_down, (int, float)) and slow_down > 0):
        raise DeviceError(f'slow_down is a number above 0 or "auto", not {slow_down!r}')
    machine = _assemble(chips, "emulated", bus, memory)
    lanes = sum(device.lanes for device in machine.devices)
    threads = max(1, cores() // lanes)
    devices = tuple(replace(device, threads=threads) for device in machine.devices)
    factor = 0.0 if slow_down == "auto" else float(slow_down)
    return replace(machine, devices=devices, clock="declared", slow_down=factor).check()


def _assemble(
    chips: Sequence[str | Device],
    kind: str,
    bus: str | Sequence[str] | None,
    memory: Mapping[str, int | str] | None,
) -> Machine:
    found = [chip if isinstance(chip, Device) else find_chip(chip) for chip in chips]
    if not found:
        raise DeviceError('the chip list is empty; give at least one, for example "cpu", "h100-sxm"')
    given = [find_bus(name) for name in ([bus] if isinstance(bus, str) else bus or ())]
    devices: list[Device] = []
    buses: dict[str, tuple[Bus, Bus | None]] = {}
    accelerators = 0
    for chip in found:
        if chip.kind == "cpu":
            if any(device.kind == "cpu" for device in devices):
                raise DeviceError(
                    "a machine has one CPU device; give a second socket as more cores of the one"
                )
            devices.append(chip.device("cpu") if isinstance(chip, Chip) else chip)
            continue
        host = next((b for b in given if not b.peer), None)
        peer = next((b for b in given if b.peer), None)
        if isinstance(chip, Chip):
            devices.append(chip.device(f"{kind}:{accelerators}", kind))
            accelerators += 1
            host = host or find_bus(chip.bus)
            peer = peer or (find_bus(chip.peer_bus) if chip.peer_bus else None)
        else:
            devices.append(chip)
        buses[devices[-1].name] = (host or find_bus("pcie4"), peer)
    machine = Machine(tuple(devices), _links(devices, buses)).check()
    return machine.with_memory({name: parse_bytes(cap) for name, cap in (memory or {}).items()})


def _links(devices: Sequence[Device], buses: Mapping[str, tuple[Bus, Bus | None]]) -> tuple[Link, ...]:
    """A link each way between any two devices.

    A bus is full duplex and each accelerator has its own, so that the wire of a link is one direction of one
    device's bus. A copy between two accelerators takes up the source's way out; the destination's way in is
    its copy queue's.
    """
    links = []
    for src in devices:
        for dst in devices:
            if src.name == dst.name:
                continue
            if src.name not in buses:
                way = buses[dst.name][0]
                wire = f"{dst.name} {way.title} in"
            elif dst.name not in buses:
                way = buses[src.name][0]
                wire = f"{src.name} {way.title} out"
            else:
                first, last = _between(buses[src.name], buses[dst.name])
                way = min(first, last, key=lambda bus: bus.reached)
                wire = f"{src.name} {first.title} out"
            links.append(Link(src.name, dst.name, way.latency_s + 2 * HANDOFF_S, way.reached, wire))
    return tuple(links)


def _between(src: tuple[Bus, Bus | None], dst: tuple[Bus, Bus | None]) -> tuple[Bus, Bus]:
    """Both ends of the way between two accelerators: their peer bus if it is the same, else their host
    buses."""
    if src[1] is not None and src[1] == dst[1]:
        return src[1], src[1]
    return src[0], dst[0]
