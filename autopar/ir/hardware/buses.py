"""Declared buses between devices and networks between hosts: what the datasheets promise in one direction, and the
share of it that copies and messages reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from ...errors import DeviceError

T = TypeVar("T")

REACHED = 0.8
"""Share of a bus that large pinned copies reach: protocol headers and credits take the rest (PCIe 3 to 5
cards commonly measure 0.78 to 0.87 of the encoded rate, NVLink about 0.8). The same of a network port that large
messages reach: headers, and the pace of the collective above it."""


@dataclass(frozen=True, slots=True)
class Bus:
    """A way between two devices, or one port of a network: datasheet bytes per second in one direction, and latency.

    No datasheet gives a latency; `latency_s` is what an asynchronous copy of a few bytes commonly takes, call
    included, or such a message from its send to its receipt. `peer` marks a bus between accelerators.
    """

    name: str
    title: str
    bytes_per_s: float
    latency_s: float
    source: str
    peer: bool = False

    @property
    def reached(self) -> float:
        """Bytes per second that large copies or messages are expected to reach."""
        return self.bytes_per_s * REACHED


def _pcie(generation: int, transfers_per_s: float, encoding: float) -> Bus:
    rate = transfers_per_s * 16 / 8 * encoding
    source = (
        f"PCI-SIG, PCI Express Base Specification {generation}.0: {transfers_per_s / 1e9:g} GT/s, 16 lanes"
    )
    return Bus(f"pcie{generation}", f"PCIe {generation}.0 x16", rate, 10e-6, source)


def _nvlink(generation: int, total: float, source: str) -> Bus:
    return Bus(f"nvlink{generation}", f"NVLink {generation}", total / 2, 5e-6, source, peer=True)


BUSES: dict[str, Bus] = {
    bus.name: bus
    for bus in (
        _pcie(3, 8e9, 128 / 130),
        _pcie(4, 16e9, 128 / 130),
        _pcie(5, 32e9, 128 / 130),
        _pcie(6, 64e9, 242 / 256),
        _nvlink(2, 300e9, "NVIDIA V100 datasheet: NVLink 300 GB/s, both directions together"),
        _nvlink(3, 600e9, "NVIDIA A100 datasheet: NVLink 600 GB/s, both directions together"),
        _nvlink(4, 900e9, "NVIDIA H100 datasheet (SXM): NVLink 900 GB/s, both directions together"),
        _nvlink(5, 1800e9, "NVIDIA DGX B200 datasheet: 14.4 TB/s over 8 GPUs, both directions together"),
        Bus(
            "nvlink4-bridge",
            "NVLink 4 bridge",
            300e9,
            5e-6,
            "NVIDIA H100 datasheet (PCIe): NVLink bridge 600 GB/s, both directions together",
            peer=True,
        ),
        Bus(
            "infinity3",
            "Infinity Fabric 3, one link",
            50e9,
            6e-6,
            "AMD CDNA 2 white paper: 50 GB/s per link and direction",
            peer=True,
        ),
        Bus(
            "infinity4",
            "Infinity Fabric 4, one link",
            64e9,
            6e-6,
            "AMD Instinct MI300X data sheet: 128 GB/s per link, both directions together",
            peer=True,
        ),
    )
}


def _infiniband(gigabits: int, generation: str) -> Bus:
    source = f"InfiniBand Trade Association roadmap: {generation}, {gigabits} Gb/s, 4 lanes"
    return Bus(f"ib-{gigabits}", f"InfiniBand {generation}", gigabits / 8 * 1e9, 5e-6, source)


def _ethernet(gigabits: int, latency_s: float) -> Bus:
    title = f"{gigabits} Gb/s Ethernet"
    return Bus(f"ethernet-{gigabits}", title, gigabits / 8 * 1e9, latency_s, f"IEEE 802.3: {gigabits} Gb/s")


NETWORKS: dict[str, Bus] = {
    network.name: network
    for network in (
        _infiniband(100, "EDR"),
        _infiniband(200, "HDR"),
        _infiniband(400, "NDR"),
        _infiniband(800, "XDR"),
        _ethernet(1, 1e-4),
        _ethernet(10, 5e-5),
        _ethernet(25, 3e-5),
        _ethernet(100, 2e-5),
        _ethernet(400, 2e-5),
    )
}


def find(what: str, name: str, known: Mapping[str, T], more: str = "") -> T:
    """The bus, network or chip called `name`; DeviceError lists those known and the nearest, and says `more`."""
    if name in known:
        return known[name]
    close = get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.5)
    near = f" (did you mean {close[0]!r}?)" if close else ""
    raise DeviceError(f"no {what} {name!r} is known{near}; known are {', '.join(known)}{more}")
