"""The hosts of a job as found: the machine of each process, and measured links between neighbours."""

from __future__ import annotations

import socket
import time

import torch
import torch.distributed as dist

from ..ir.device import Link
from ..ir.hosts import Host, Hosts
from ..ir.machine import Machine
from ..ir.serialize import decode, encode
from .messages import gather

SMALL, LARGE = 8, 4 << 20
"""Bytes of the messages that measure latency and bandwidth."""
ROUNDS = {SMALL: 50, LARGE: 5}
"""Round trips for each message size; the fastest counts."""


def found(machine: Machine, group: dist.ProcessGroup | None, device: torch.device) -> Hosts:
    """Return the processes of a group as hosts `rank 0`, `rank 1`, …, each with its own machine.

    The link from each process to the next is measured by messages of 8 bytes and 4 MiB, a few milliseconds for each
    pair; other links are assumed to be as fast as those of their ends. Every process of the group must call it.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    told = gather({"node": socket.gethostname(), "machine": encode(machine)}, group)
    figures = torch.zeros(count, 2, dtype=torch.float64, device=device)
    for src in range(count if count > 1 else 0):
        figures[src] = _measured(src, (src + 1) % count, rank, group, device)
    dist.all_reduce(figures, group=group)
    # Where others disturbed the small messages, the large ones bound both.
    ways = [(min(small, large), LARGE / max(large - small, large / 2)) for small, large in figures.tolist()]
    hosts = tuple(
        Host(f"rank {at}", decode(Machine, one["machine"], f"rank {at}"), rate, latency, network=one["node"])
        for at, (one, (latency, rate)) in enumerate(zip(told, ways))
    )
    links = [Link(f"rank {a}", f"rank {b}", latency, rate, f"rank {a} out")
             for a, (latency, rate) in enumerate(ways) for b in [(a + 1) % count] if count > 1]  # fmt: skip
    return Hosts(hosts, tuple(links)).check()


def _measured(
    src: int, dst: int, rank: int, group: dist.ProcessGroup | None, device: torch.device
) -> torch.Tensor:
    """Return seconds of a small and a large message between two processes; zeros except on the first of them."""
    dist.barrier(group)
    result = torch.zeros(2, dtype=torch.float64, device=device)
    if rank not in (src, dst):
        return result
    for column, size in enumerate((SMALL, LARGE)):
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        least = float("inf")
        for _ in range(ROUNDS[size]):
            began = time.perf_counter()
            for sender in (src, dst):
                if rank == sender:
                    dist.send(message, group=group, group_dst=dst if sender == src else src)
                else:
                    dist.recv(message, group=group, group_src=sender)
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            least = min(least, (time.perf_counter() - began) / 2)
        if rank == src:
            result[column] = least
    return result
