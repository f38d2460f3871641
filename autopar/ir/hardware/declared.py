"""Machines one does not have: declared from datasheets, to be planned for or to be stood in for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...errors import DeviceError
from ...system.process import cores
from ..device import HANDOFF_S, Device, Link
from ..device_kind import kind_of
from .buses import Bus, find_bus
from .chips import Chip, find_chip


def stood_in(devices: Sequence[Device]) -> tuple[Device, ...]:
    """These devices with this machine's cores shared out among their lanes."""
    threads = max(1, cores() // sum(device.lanes for device in devices))
    return tuple(replace(device, threads=threads) for device in devices)


def declared(
    chips: Sequence[str | Device], kind: str, bus: str | Sequence[str] | None
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Devices of these chips, accelerators being of `kind` and numbered from 0, and the links between any two.

    `bus` names the buses to use in place of the chips' own. Raises DeviceError for chips and buses that are not known.
    """
    found = [chip if isinstance(chip, Device) else find_chip(chip) for chip in chips]
    if not found:
        raise DeviceError('the chip list is empty; give at least one, for example "cpu", "h100-sxm"')
    given = [find_bus(name) for name in ([bus] if isinstance(bus, str) else bus or ())]
    devices: list[Device] = []
    buses: dict[str, tuple[Bus, Bus | None]] = {}
    accelerators = 0
    for chip in found:
        if kind_of(chip.kind).host:
            if any(device.traits.host for device in devices):
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
    return tuple(devices), _links(devices, buses)


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
