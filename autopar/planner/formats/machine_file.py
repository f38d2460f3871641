"""The devices and links of a graph file as a `Machine`, and back."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ...errors import PlanError
from ...ir.device import Device, Link
from ...ir.machine import Machine
from . import fields

DEVICE = frozenset(("name", "lanes", "memory_bytes"))
"""What is said of a device."""
LINK = frozenset(("src", "dst", "latency_s", "bytes_per_s", "wire"))
"""What is said of a link."""
LISTS = ("tasks", "values", "devices", "links")
"""The lists that a graph file has."""


def machine(data: Mapping[str, Any]) -> Machine:
    """The machine of a graph file: transfers wait for wires alone, and a link without a wire has its own.

    Raises PlanError for what is no machine. A link from a device to itself is of no use and left out.
    """
    devices: dict[str, Device] = {}
    for index, item in enumerate(fields.rows(data, "devices", LISTS)):
        entry = fields.row(item, "devices[{}]", index)
        name = fields.text(fields.need(entry, "name", "devices[{}]", index), "the name of devices[{}]", index)
        fields.spelt(entry, DEVICE, "device {!r}", name)
        if name in devices:
            raise PlanError(f"two devices are called {name!r}; give each a name of its own")
        cap = entry.get("memory_bytes")
        devices[name] = Device(
            name,
            name.split(":")[0],
            lanes=fields.count(entry.get("lanes", 1), "'lanes' of device {!r}", name),
            memory_bytes=None if cap is None else fields.nbytes(cap, "'memory_bytes' of device {!r}", name),
        )
    if not devices:
        raise PlanError('the list "devices" is empty; give at least one, such as {"name": "cpu", "lanes": 1}')
    position = {name: index for index, name in enumerate(devices)}
    alone = len(devices) == 1 and "links" not in data
    links: dict[tuple[str, str], Link] = {}
    entries = [
        fields.row(item, "links[{}]", index)
        for index, item in enumerate(() if alone else fields.rows(data, "links", LISTS))
    ]
    named = {str(entry.get("wire")) for entry in entries}
    for index, entry in enumerate(entries):
        link = _link(entry, index, position, named)
        if (link.src, link.dst) in links:
            raise PlanError(f"two links lead from {link.src!r} to {link.dst!r}; leave one out")
        if link.src != link.dst:
            links[link.src, link.dst] = link
    return Machine(tuple(devices.values()), tuple(links.values()), absent=True, queued=False)


def _link(entry: Mapping[str, Any], index: int, position: Mapping[str, int], named: Container[str]) -> Link:
    ends = [fields.need(entry, end, "links[{}]", index) for end in ("src", "dst")]
    for name, end in zip(ends, ("src", "dst")):
        fields.known(name, position, "device", "{!r} of links[{}]", end, index)
    src, dst = ends
    where = f"the link {src} → {dst}"
    fields.spelt(entry, LINK, "{}", where)
    latency = fields.seconds(fields.need(entry, "latency_s", "{}", where), "'latency_s' of {}", where)
    rate = fields.number(
        fields.need(entry, "bytes_per_s", "{}", where), "bytes a second", "'bytes_per_s' of {}", where
    )
    if rate < 1 / fields.LARGEST:
        raise PlanError(f"'bytes_per_s' of {where} is {rate}; it must be more than 0, or leave the link out")
    own = f"{src} → {dst}"
    while own in named:
        own += "'"
    wire = entry.get("wire", own)
    return Link(src, dst, latency, rate, wire if wire is None else fields.text(wire, "'wire' of {}", where))


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
