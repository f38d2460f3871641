"""Declared networks between hosts: what the datasheets promise in one direction for one port."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import DeviceError
from .buses import nearest

REACHED = 0.8
"""Share of a port that large messages reach: headers, and the pace of the collective above it."""


@dataclass(frozen=True, slots=True)
class Network:
    """A kind of network port: datasheet bytes per second in one direction, and seconds from a send to its receipt.

    No datasheet gives a latency between processes; `latency_s` is what a message of a few bytes commonly takes.
    """

    name: str
    title: str
    bytes_per_s: float
    latency_s: float
    source: str

    @property
    def reached(self) -> float:
        """Bytes per second that large messages are expected to reach."""
        return self.bytes_per_s * REACHED


def _infiniband(gigabits: int, generation: str) -> Network:
    source = f"InfiniBand Trade Association roadmap: {generation}, {gigabits} Gb/s, 4 lanes"
    return Network(f"ib-{gigabits}", f"InfiniBand {generation}", gigabits / 8 * 1e9, 5e-6, source)


def _ethernet(gigabits: int, latency_s: float) -> Network:
    title = f"{gigabits} Gb/s Ethernet"
    return Network(
        f"ethernet-{gigabits}", title, gigabits / 8 * 1e9, latency_s, f"IEEE 802.3: {gigabits} Gb/s"
    )


NETWORKS: dict[str, Network] = {
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


def find_network(name: str) -> Network:
    """The network called `name`; DeviceError lists those known and the nearest."""
    if name in NETWORKS:
        return NETWORKS[name]
    raise DeviceError(
        f"no network {name!r} is known{nearest(name, NETWORKS)}; known are {', '.join(NETWORKS)}"
    )
