"""Hosts: machines joined by a network. Pure data; each host runs one or several processes of `torch.distributed`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from ..errors import DeviceError
from ..system.text import size, table
from .device import Link
from .hardware import NETWORKS, find
from .machine import Machine

MOST_HOSTS, MOST_CHIPS = 4_096, 1_024
"""Limits on the hosts of one declaration and the chips of each, against input that would exhaust memory."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine in a network. Its `ports` together carry `bytes_per_s` in each direction. From a send to its
    receipt, `latency_s` seconds are added."""

    name: str
    machine: Machine
    bytes_per_s: float
    latency_s: float
    ports: int = 1
    network: str = ""


@dataclass(frozen=True)
class Hosts:
    """Hosts, each of which reaches every other one over the network.

    `links` has the measured links between hosts, by name; any other link is as fast as its slower end.
    Messages of one host share its outgoing port.
    """

    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()

    @cached_property
    def host(self) -> dict[str, Host]:
        """Hosts by name."""
        return {host.name: host for host in self.hosts}

    @cached_property
    def _measured(self) -> dict[tuple[str, str], Link]:
        return {(link.src, link.dst): link for link in self.links}

    def link(self, src: str, dst: str) -> Link:
        """Return the link from one host to another; its bus is the outgoing port of `src`. Raises DeviceError
        for unknown hosts."""
        for name in (src, dst):
            if name not in self.host:
                raise DeviceError(f"no host {name!r}; there are {', '.join(self.host)}")
        measured = self._measured.get((src, dst))
        if measured:
            return measured
        a, b = self.host[src], self.host[dst]
        rate = min(a.bytes_per_s, b.bytes_per_s)
        return Link(src, dst, max(a.latency_s, b.latency_s), rate, f"{src} out")

    @property
    def accelerators(self) -> int:
        """Number of accelerators of all hosts; a host without any counts its CPU."""
        return sum(len(compute_devices(host.machine)) for host in self.hosts)

    def check(self) -> Hosts:
        """Return self, or raise DeviceError with the first error."""
        if not self.hosts:
            raise DeviceError('there are no hosts; give at least one, for example "2 x cpu over ethernet-10"')
        if len(self.host) < len(self.hosts):
            names = [host.name for host in self.hosts]
            twice = next(name for name in names if names.count(name) > 1)
            raise DeviceError(f"host {twice!r} is listed twice; give each a name of its own")
        for host in self.hosts:
            host.machine.check()
            if host.bytes_per_s <= 0 or host.latency_s < 0:
                raise DeviceError(f"host {host.name!r} needs bytes_per_s > 0 and latency_s ≥ 0")
        for link in self.links:
            self.link(link.src, link.dst)
        return self

    @staticmethod
    def declare(text: str) -> Hosts:
        """Parse hosts: `"8 x (cpu + 8 h100) over ib-400"`, `"2 x cpu + 1 x (cpu + 4 a100) over 2 ib-200"`.

        Machines are as in `Machine.declare`, networks as in `NETWORKS`, preceded by the number of ports of each host.
        One host needs no network: `"cpu + 2 rtx-4090"`. Raises DeviceError, naming the part that cannot be read.
        """
        if not isinstance(text, str):
            raise DeviceError(
                f'hosts={text!r} is not text; write, for example, "2 x (cpu + 4 h100) over ib-400"'
            )
        machines, _, over = text.partition(" over ")
        # Without a network, and unless it says otherwise, the text is one host: its chips need no brackets.
        alone = not over.strip() and not re.search(r"\(|^\s*\d+\s*[x×]", machines)
        groups = _groups(f"({machines})" if alone else machines)
        count = sum(number for number, _ in groups)
        if count > MOST_HOSTS:
            raise DeviceError(f"hosts={text!r} are more than {MOST_HOSTS:,} hosts")
        if count == 1 and not over.strip():
            return Hosts((Host("host0", Machine.declare(*groups[0][1]), math.inf, 0.0),)).check()
        if not over.strip():
            raise DeviceError(
                f'hosts={text!r} names no network; end it, for example, with " over ib-400" or " over ethernet-10"'
            )
        match = re.fullmatch(r"(?:(\d+)\s+)?(\S+)", over.strip())
        if not match or match[1] == "0":
            raise DeviceError(
                f'"over {over.strip()}" names no network; write, for example, "over ib-400" or "over 8 ib-400"'
            )
        ports, network = int(match[1] or 1), find("network", match[2], NETWORKS)
        rate, latency = ports * network.reached, network.latency_s
        each = [machine for number, chips in groups for machine in number * (Machine.declare(*chips),)]
        hosts = (
            Host(f"host{index}", machine, rate, latency, ports, network.title)
            for index, machine in enumerate(each)
        )
        return Hosts(tuple(hosts)).check()

    def __str__(self) -> str:
        rows = [("host", "devices", "network", "way out", "latency")]
        for host in self.hosts:
            chips = ", ".join(device.chip or device.name for device in host.machine.devices)
            way = (
                (f"{size(host.bytes_per_s)}/s", f"{host.latency_s * 1e6:.1f} µs")
                if host.network
                else ("-", "-")
            )
            rows.append((host.name, chips, host.network or "-", *way))
        return table(rows, right=(3, 4))


def compute_devices(machine: Machine) -> tuple[str, ...]:
    """Return the names of the devices that compute: the accelerators, or else the CPU."""
    accelerators = tuple(device.name for device in machine.devices if not device.traits.host)
    return accelerators or tuple(device.name for device in machine.devices)


def _groups(text: str) -> list[tuple[int, list[str]]]:
    """Return (number of hosts, chips of each) for each group in the text."""
    groups = []
    for group in re.split(r"\+(?![^(]*\))", text):
        match = re.fullmatch(r"\s*(?:(\d+)\s*[x×]\s*)?(?:\(([^()]*)\)|([^()]*?))\s*", group)
        if not match:
            raise DeviceError(
                f'hosts: cannot read {group.strip()!r}; write, for example, "8 x (cpu + 8 h100) over ib-400"'
            )
        groups.append((int(match[1] or 1), _chips(match[3] if match[2] is None else match[2])))
    if any(count < 1 for count, _ in groups):
        raise DeviceError(
            f'hosts: {text.strip()!r} are no hosts; write, for example, "2 x cpu over ethernet-10"'
        )
    return groups


def _chips(text: str) -> list[str]:
    chips: list[str] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)\s+)?(\S+)\s*", part)
        if not match:
            raise DeviceError(f"hosts: {part.strip()!r} is not a chip; write a name, such as h100, or 8 h100")
        if len(chips) + int(match[1] or 1) > MOST_CHIPS:
            raise DeviceError(f"hosts: {text.strip()!r} are more than {MOST_CHIPS:,} chips of one host")
        chips += [match[2]] * int(match[1] or 1)
    return chips
