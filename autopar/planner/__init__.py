"""The planner, without torch: `place` a costed graph, `replan` an edited plan, `schedule` a graph of any origin."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ..errors import PlanError
from ..ir.costed import Cluster, CostedGraph
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system.process import gc_paused
from ..system.text import matching, parse_bytes
from .formats import Source, read
from .model.simulator import Schedule
from .policies import POLICIES, Policy, require_policy
from .portfolio import place, replan
from .search.anneal import STEPS

log = logging.getLogger("autopar")

__all__ = ["POLICIES", "Policy", "Schedule", "place", "replan", "require_policy"]


def schedule(
    graph: Source,
    machine: Machine | int | None = None,
    *,
    memory: Mapping[str, int | float | str] | None = None,
    pins: Mapping[str, str] | None = None,
    budget_s: float | None = None,
) -> Plan:
    """Plan a task graph: which device and lane runs each task, and when each value is transferred.

    Args:
        graph: A `CostedGraph`, a networkx DiGraph, parsed JSON, or the path of a graph file.
        machine: Replaces the machine of the graph; for a networkx graph, it may be the number of equal processors,
            which share their memory: transfers take no time.
        memory: Device → cap in bytes, or text such as "6GiB".
        pins: Task id, or glob of ids → device.
        budget_s: Limit on the search in seconds, None: none. If it ends the search, `stopped` is `time`. The search
            itself counts steps, so that equal input gives an equal plan.

    Raises PlanError for an invalid graph or one that cannot be planned, DeviceError for an unknown device,
    MemoryCapError if nothing fits. Logs a warning about devices without links.
    """
    if budget_s is not None and not (isinstance(budget_s, (int, float)) and budget_s > 0):
        raise PlanError(
            f"budget_s={budget_s!r} leaves no time to plan; give seconds above 0, or leave it out"
        )
    for name, value, example in (("memory", memory, "{device: bytes}"), ("pins", pins, "{task: device}")):
        if value is not None and not isinstance(value, Mapping):
            raise PlanError(f"{name}={value!r} is not a mapping; give {example}")
    with gc_paused():
        costed = read(graph, machine)
        unlinked = costed.machine.unlinked
        if unlinked and any(task.inputs for task in costed.graph.tasks):
            log.warning(
                "no link leads to or from %s, so tasks there exchange no values with those elsewhere; add links in "
                'both directions, such as {"src": "%s", "dst": …, "latency_s": 1e-5, "bytes_per_s": 1e9}',
                ", ".join(unlinked), unlinked[0],
            )  # fmt: skip
        if memory:
            caps = {device: parse_bytes(cap) for device, cap in memory.items()}
            costed = replace(costed, machine=costed.machine.with_memory(caps))
        return place(_pinned(costed, pins or {}), steps=STEPS, budget_s=budget_s)


def _pinned(costed: CostedGraph, pins: Mapping[str, str]) -> CostedGraph:
    """Bind clusters to devices by name or glob; names precede globs, and longer globs shorter ones."""
    chosen: dict[str, str] = {}
    # A node of a networkx graph may be any object; its text is the name of its task.
    named = [(str(pattern), device) for pattern, device in pins.items()]
    for pattern, device in sorted(named, key=lambda pin: (pin[0] in costed.cluster, len(pin[0]), pin[0])):
        costed.machine.require(device)
        complaint = f"pins={{{pattern!r}: {device!r}}} names no task of {costed.graph.name!r}"
        chosen |= dict.fromkeys(matching(pattern, costed.cluster, complaint), device)
    clusters = (
        _bound(cluster, chosen[cluster.name], costed) if cluster.name in chosen else cluster
        for cluster in costed.clusters
    )
    return replace(costed, clusters=tuple(clusters))


def _bound(cluster: Cluster, device: str, costed: CostedGraph) -> Cluster:
    d = costed.index[device]
    if cluster.seconds[d] is None:
        able = [name for name, s in zip(costed.index, cluster.seconds) if s is not None]
        raise PlanError(
            f"task {cluster.name!r} is pinned to {device}, which cannot run it; it can run on {' or '.join(able)}"
        )
    return cluster.on(d)
