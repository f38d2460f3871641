"""The processes of a job (a whole host each, one accelerator, or several), arranged as replicas × positions, and the
routes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Literal

from ...errors import DeviceError
from ...ir.device import HANDOFF_S, Device, Link
from ...ir.distribution import BUCKET_BYTES, FIRST_BUCKET_BYTES
from ...ir.hosts import Host, Hosts, compute_devices
from ...ir.machine import Machine

CORE_BYTES_PER_S = 1.6e9
"""Bytes that a core sends or receives in a second: on two cores of an AMD EPYC with AVX2, gloo took 0.5 ms of a core to
send 1 MiB over loopback, 0.7 ms to receive it, and 5 ms to sum 4 MiB."""
SUMMED_BYTES_PER_S = CORE_BYTES_PER_S / 2
"""Bytes of a sum that a core handles in a second: each byte is sent and received."""
CORE_S = 1e-4
"""Seconds of a core, on each side, to wake a thread for a message of any size."""


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


def processes(
    hosts: Hosts, each: Literal["host", "accelerator"] = "host", group: int = 1
) -> tuple[Process, ...]:
    """Return the processes of a job, host by host.

    `each` `host`: one for each host, whose devices autopar plans inside; its memory is that of all devices that
    compute. `accelerator`: one for every `group` accelerators of a host (a group computes each unit together, by
    tensor parallelism), or for its CPU if it has none; a remainder is unused. Raises DeviceError if no host has that
    many accelerators.
    """
    members: list[Process] = []
    kinds: dict[Hashable, str] = {}
    for host in hosts.hosts:
        for like, process in _of(host, each, group):
            members.append(replace(process, kind=kinds.setdefault(like, process.name)))
    if not members:
        raise DeviceError(
            f"no host has {group} accelerators; give a smaller group, or hosts with more of them"
        )
    return tuple(members)


def _of(host: Host, each: str, group: int) -> Iterator[tuple[Hashable, Process]]:
    """Yield (key, process) for each process of a host; equal processes share a key."""
    names = compute_devices(host.machine)
    if each == "host":
        memory = [host.machine.device[name].memory_bytes for name in names]
        room = None if None in memory else sum(nbytes or 0 for nbytes in memory)
        yield host.machine, Process(host.name, host.name, names, "", room, whole=True)
        return
    for first in range(0, len(names) - group + 1, group):
        members = names[first : first + group]
        name = f"{host.name}/{members[0]}" + (f"+{group - 1}" if group > 1 else "")
        devices = [host.machine.device[member] for member in members]
        like = tuple(replace(device, name="") for device in devices)
        caps = [device.memory_bytes for device in devices if device.memory_bytes is not None]
        yield like, Process(name, host.name, members, "", min(caps, default=None))


@dataclass(frozen=True)
class Grid:
    """`rows[replica][position]` is a process. The ports of a host are shared evenly by all that send at once.

    If a position differs between replicas, it is planned as the slowest of them, for which every step waits.
    """

    hosts: Hosts
    rows: tuple[tuple[Process, ...], ...]

    @property
    def positions(self) -> int:
        """Number of processes of one replica."""
        return len(self.rows[0])

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """Kinds of process at each position."""
        return tuple(tuple(dict.fromkeys(process.kind for process in column)) for column in zip(*self.rows))

    @cached_property
    def caps(self) -> tuple[int | None, ...]:
        """Least device memory at each position."""
        return tuple(
            min((p.memory_bytes for p in column if p.memory_bytes is not None), default=None)
            for column in zip(*self.rows)
        )

    @cached_property
    def links(self) -> dict[tuple[int, int], Link]:
        """Slowest link over the replicas from each position to the next (cyclic), and back."""
        count = self.positions
        after = [(at, (at + 1) % count) for at in range(count if count > 1 else 0)]
        ends = dict.fromkeys(pair for src, dst in after for pair in ((src, dst), (dst, src)))
        return {(src, dst): self._slowest(src, dst) for src, dst in ends}

    @cached_property
    def machine(self) -> Machine:
        """The positions as the devices of a machine, each with a second lane for gradient sums. It is fully connected,
        though only neighbours send."""
        every = range(self.positions)
        latency = max((link.latency_s for link in self.links.values()), default=0.0)
        links = tuple(
            self.links.get((src, dst)) or Link(str(src), str(dst), latency, 1.0, None)
            for src in every
            for dst in every
            if src != dst
        )
        return Machine(tuple(Device(str(at), "emulated", lanes=2) for at in every), links, queued=False)

    def _slowest(self, src: int, dst: int) -> Link:
        """Return the slowest link between two positions; replicas that leave one host at the same time share its
        ports."""
        leaving = Counter(row[src].host for row in self.rows if row[src].host != row[dst].host)
        links = [
            self._link(a, b, leaving[a.host])
            for a, b in dict.fromkeys((row[src], row[dst]) for row in self.rows)
        ]
        latency, rate = max(link.latency_s for link in links), min(link.bytes_per_s for link in links)
        return Link(str(src), str(dst), latency, rate, links[0].wire)

    def _link(self, src: Process, dst: Process, flows: int) -> Link:
        if src.host == dst.host:
            return inside(self.hosts.host[src.host], src.devices[0], dst.devices[0])
        link, host = self.hosts.link(src.host, dst.host), self.hosts.host[src.host]
        if src.whole:
            return replace(link, bytes_per_s=link.bytes_per_s / flows, wire=f"{src.host} out")
        used = len(src.devices)
        rate = link.bytes_per_s * used / max(host.ports, flows * used)
        return replace(link, bytes_per_s=rate, wire=f"{src.host if host.ports == 1 else src.name} out")

    def reduce_s(self, position: int, nbytes: float, backward_s: float) -> float:
        """Return the seconds by which the sum of `nbytes` of gradients over the replicas of a position ends
        after the last backward, which computes them evenly over `backward_s`. Buckets are summed one by one,
        while other positions do the same. On a CPU, sums take time of the cores that compute."""
        if not nbytes:
            return 0.0
        first = min(nbytes, FIRST_BUCKET_BYTES)
        rest = ceil((nbytes - first) / BUCKET_BYTES)
        last = nbytes - first - (rest - 1) * BUCKET_BYTES if rest else first
        members = self._replicas(position)
        all_s = (rest + 1) * self._ring(members, nbytes / (rest + 1))
        busy_s = (
            all_reduce_s(len(members), nbytes, 0.0, SUMMED_BYTES_PER_S) if self._on_cpu(members[0]) else 0.0
        )
        # The links are busy from the first bucket on, or wait for the last one.
        return max(all_s - backward_s * (1 - first / nbytes), all_s * last / nbytes, busy_s)

    def gather_s(self, position: int, nbytes: float, groups: int) -> float:
        """Return the seconds to all-gather `nbytes` of sharded parameters over the replicas of a position in `groups`
        messages, or to reduce-scatter their gradients: each is half of an `all_reduce_s`."""
        return groups * self._ring(self._replicas(position), nbytes / groups) / 2

    def pass_s(self, position: int, compute_s: float, nbytes: float, groups: int, messages: int) -> float:
        """Return the seconds of a pass through a sharded stage: computation, and `messages` for each group.

        An accelerator computes one group while the next is gathered, so that only the first wait is exposed.
        """
        each = self.gather_s(position, nbytes, groups)
        if self._on_cpu(self.rows[0][position]):
            return compute_s + messages * each
        return max(compute_s, messages * each) + each / groups

    def message_s(self, position: int, nbytes: float) -> float:
        """Return the seconds that sending or receiving a message adds to a pass: on a CPU, gloo's threads use the cores
        that compute, and torch's schedules receive a message only when they need it."""
        on_cpu = nbytes and self._on_cpu(self.rows[0][position])
        return CORE_S + nbytes / CORE_BYTES_PER_S if on_cpu else 0.0

    def _on_cpu(self, process: Process) -> bool:
        return self.hosts.host[process.host].machine.device[process.devices[0]].traits.host

    def _replicas(self, position: int) -> tuple[Process, ...]:
        return tuple(row[position] for row in self.rows)

    def tie_s(self, positions: Sequence[int], nbytes: float) -> float:
        """Return the seconds to sum a gradient over positions of one replica that share the parameter."""
        return self._ring(tuple(self.rows[0][position] for position in dict.fromkeys(positions)), nbytes)

    def _ring(self, members: tuple[Process, ...], nbytes: float) -> float:
        count = len(members)
        if count < 2 or not nbytes:
            return 0.0
        return all_reduce_s(count, nbytes, *self._pace(members))

    @cached_property
    def _paces(self) -> dict[tuple[Process, ...], tuple[float, float]]:
        return {}

    def _pace(self, members: tuple[Process, ...]) -> tuple[float, float]:
        """Return latency and bytes per second of the slowest link of a ring through the hosts in order."""
        if members in self._paces:
            return self._paces[members]
        on = Counter(process.host for process in members)
        latency, rate = 0.0, SUMMED_BYTES_PER_S if self._on_cpu(members[0]) else float("inf")
        for src, dst in zip(members, members[1:] + members[:1]):
            if src.host == dst.host:
                if src.devices == dst.devices:
                    continue
                link, share = self._link(src, dst, 1), 1.0
            else:
                link, ports = self.hosts.link(src.host, dst.host), self.hosts.host[src.host].ports
                share = 1.0 if src.whole else on[src.host] / max(ports, self._used[src.host])
            latency, rate = max(latency, link.latency_s), min(rate, link.bytes_per_s * share)
        self._paces[members] = latency, rate
        return latency, rate

    @cached_property
    def _used(self) -> Counter[str]:
        """Number of accelerators of each host in use."""
        return Counter(process.host for row in self.rows for process in row for _ in process.devices)


def inside(host: Host, src: str, dst: str) -> Link:
    """Return the link between two devices of a host for `torch.distributed`, without thread hand-offs."""
    links = host.machine.route(src, dst)
    latency = sum(max(0.0, link.latency_s - 2 * HANDOFF_S) for link in links)
    return Link(src, dst, latency, min(link.bytes_per_s for link in links), f"{host.name} {links[0].wire}")


def all_reduce_s(count: int, nbytes: float, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds of an all-reduce of `nbytes` over `count` processes, given latency and rate of the slowest
    link.

    Each sends 2 (count - 1) / count of the bytes, as in a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", JPDC 2009); latencies are those of two trees (Sanders, Speck and Träff,
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009).
    """
    if count < 2 or not nbytes:
        return 0.0
    return 2 * (count - 1).bit_length() * latency_s + 2 * (count - 1) / count * nbytes / bytes_per_s


def grids(hosts: Hosts, members: Sequence[Process], replicas: int, positions: int) -> list[Grid]:
    """Return the two common layouts of the first `replicas × positions` processes: each replica on
    neighbours, and each position on neighbours; only one if they are equal."""
    used = members[: replicas * positions]
    rows = tuple(tuple(used[r * positions : (r + 1) * positions]) for r in range(replicas))
    columns = tuple(tuple(used[s * replicas + r] for s in range(positions)) for r in range(replicas))
    return [Grid(hosts, rows)] + ([Grid(hosts, columns)] if columns != rows else [])
