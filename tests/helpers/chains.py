"""Chains of units to be cut into pipeline stages, and hosts for them."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.hosts import Hosts
from autopar.planner.pipelines import Chain, RowCost, Unit


def even_chain(units: int = 12, *, fixed_s: float = 0.0, crossing: float = 0.0, weights: int = 1000) -> Chain:
    """Equal units: a millisecond of forward for each row, twice as much backward, 100 bytes saved."""
    return Chain(
        "even",
        ("host0",),
        tuple(
            Unit(f"u{i}", (RowCost(fixed_s, 1e-3),), (RowCost(fixed_s, 2e-3),), ((f"w{i}", weights),),
                 saved_bytes=100, crossing_bytes=crossing)
            for i in range(units)
        ),
    )  # fmt: skip


def hosts(count: int, network: str = "ethernet-10", *, free: bool = False) -> Hosts:
    """Equal hosts with a CPU each; `free`: messages take next to no time."""
    made = Hosts.declare(f"{count} x cpu over {network}")
    if not free:
        return made
    return Hosts(tuple(replace(host, latency_s=0.0, bytes_per_s=1e30) for host in made.hosts))
