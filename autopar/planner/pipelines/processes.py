"""The processes of a job: a whole host each, one accelerator, or several."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

from ...errors import DeviceError
from ...ir.hosts import Host, Hosts, compute_devices


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a pipeline: `devices` of a host, with `memory_bytes` on each (None: not limited).

    `kind`: name of the first equal process. `whole`: it uses the host and its network alone.
    """

    name: str
    host: str
    devices: tuple[str, ...]
    kind: str
    memory_bytes: int | None
    whole: bool = False

    def capped(self, memory_bytes: int) -> Process:
        """Return the process with another cap."""
        return replace(self, memory_bytes=memory_bytes)


def processes(
    hosts: Hosts, each: Literal["host", "accelerator"] = "host", group: int = 1
) -> tuple[Process, ...]:
    """Return the processes of a job, host by host.

    `each` `host`: one for each host, whose devices autopar plans inside; its memory is that of all devices that
    compute. `accelerator`: one for every `group` accelerators of a host (a group computes each unit together, by
    tensor parallelism), or for its CPU if it has none; a remainder is unused. Raises DeviceError if no host has that
    many accelerators.
    """
    found: list[Process] = []
    kinds: dict[Hashable, str] = {}
    for host in hosts.hosts:
        for name, like, process in _of(host, each, group):
            found.append(replace(process, kind=kinds.setdefault(like, name)))
    if not found:
        raise DeviceError(
            f"no host has {group} accelerators; give a smaller group, or hosts with more of them"
        )
    return tuple(found)


def _of(host: Host, each: str, group: int) -> list[tuple[str, Hashable, Process]]:
    names = compute_devices(host.machine)
    if each == "host":
        memory = [host.machine.device[name].memory_bytes for name in names]
        room = None if None in memory else sum(nbytes or 0 for nbytes in memory)
        return [(host.name, host.machine, Process(host.name, host.name, names, "", room, whole=True))]
    found: list[tuple[str, Hashable, Process]] = []
    for first in range(0, len(names) - group + 1, group):
        members = names[first : first + group]
        name = f"{host.name}/{members[0]}" + (f"+{group - 1}" if group > 1 else "")
        devices = [host.machine.device[member] for member in members]
        like = tuple(replace(device, name="") for device in devices)
        caps = [device.memory_bytes for device in devices if device.memory_bytes is not None]
        found.append((name, like, Process(name, host.name, members, "", min(caps, default=None))))
    return found
