"""The devices and links of a graph file as a `Machine`, and back."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ...errors import PlanError
from ...ir.device import Device, Link
from ...ir.machine import Machine
from .fields import LARGEST, Entry

DEVICE = frozenset(("name", "lanes", "memory_bytes"))
"""What is said of a device."""
LINK = frozenset(("src", "dst", "latency_s", "bytes_per_s", "wire"))
"""What is said of a link."""


def listed(data: Entry, key: str) -> list[Entry]:
    """The entries of one of the lists that a graph file has."""
    if key not in data.data:
        raise PlanError(
            f'the graph has no "{key}"; it needs the lists "tasks", "values", "devices" and "links"'
        )
    return data.entries(key)


def machine(data: Entry) -> Machine:
    """The machine of a graph file: transfers wait for wires alone, and a link without a wire has its own.

    Raises PlanError for what is no machine. A link from a device to itself is of no use and left out.
    """
    devices: dict[str, Device] = {}
    for entry in listed(data, "devices"):
        name = entry.name("device", DEVICE, "name")
        if name in devices:
            raise PlanError(f"two devices are called {name!r}; give each a name of its own")
        lanes, cap = entry.count("lanes", default=1), entry.nbytes("memory_bytes", None)
        devices[name] = Device(name, name.split(":")[0], lanes=lanes, memory_bytes=cap)
    if not devices:
        raise PlanError('the list "devices" is empty; give at least one, such as {"name": "cpu", "lanes": 1}')
    position = {name: index for index, name in enumerate(devices)}
    alone = len(devices) == 1 and "links" not in data.data
    links: dict[tuple[str, str], Link] = {}
    entries = [] if alone else listed(data, "links")
    named = {str(entry.data.get("wire")) for entry in entries}
    for entry in entries:
        link = _link(entry, position, named)
        if (link.src, link.dst) in links:
            raise PlanError(f"two links lead from {link.src!r} to {link.dst!r}; leave one out")
        if link.src != link.dst:
            links[link.src, link.dst] = link
    return Machine(tuple(devices.values()), tuple(links.values()), absent=True, queued=False)


def _link(entry: Entry, position: Mapping[str, int], named: Container[str]) -> Link:
    names = [*position]
    src, dst = (names[entry.among(end, position, "device")] for end in ("src", "dst"))
    own = f"{src} → {dst}"
    entry.called = f"the link {own}"
    entry.spelt(LINK)
    latency, rate = entry.seconds("latency_s"), entry.number("bytes_per_s", "bytes a second")
    if rate < 1 / LARGEST:
        raise PlanError(
            f"'bytes_per_s' of {entry.called} is {rate}; it must be more than 0, or leave the link out"
        )
    while own in named:
        own += "'"
    wire = None if entry.data.get("wire", own) is None else entry.text("wire", own)
    return Link(src, dst, latency, rate, wire)


def described(on: Machine) -> dict[str, Any]:
    """The lists "devices" and "links" of a graph file for a machine; its copy queues become wires.

    Raises PlanError for a machine whose links share wires and have copy queues besides, which the file has no
    words for.
    """
    links: list[dict[str, Any]] = []
    for link in on.links:
        wire = on.queue(link)
        if on.queued and link.wire is not None and sum(other.wire == link.wire for other in on.links) > 1:
            raise PlanError(
                f"the link {link.src} → {link.dst} shares the wire {link.wire!r} and waits in the copy queue {wire!r} "
                "too; a graph file has wires alone: make the machine with queued=False"
            )
        links.append({"src": link.src, "dst": link.dst, "latency_s": link.latency_s,
                      "bytes_per_s": link.bytes_per_s, "wire": wire})  # fmt: skip
    devices = [{"name": d.name, "lanes": d.lanes, "memory_bytes": d.memory_bytes} for d in on.devices]
    return {"devices": devices, "links": links}
