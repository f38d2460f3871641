"""Plan a task graph, from wherever it comes, without torch: `autopar.schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import PlanError
from ..ir.costed import Cluster, CostedGraph
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system.process import uncollected
from ..system.text import meant, parse_bytes
from . import OBJECTIVES
from .formats import Source, read


def schedule(
    graph: Source,
    machine: Machine | int | None = None,
    *,
    objective: str = "latency",
    memory: Mapping[str, int | float | str] | None = None,
    pins: Mapping[str, str] | None = None,
    budget_s: float | None = None,
) -> Plan:
    """The best plan found for a task graph: which device and lane runs each task, and when each value moves.

    `graph` is a `CostedGraph`, a networkx DiGraph, parsed JSON, or the path of a graph file, of a graph of the
    dnn-partitioning set or of the Standard Task Graph set. `machine` takes the place of the one the graph
    brings; for a `.stg` file it may be the number of processors. `objective` is `latency`, the shortest time from
    the first start to the last end, or `throughput`, the shortest period of calls that follow each other.
    `memory` caps devices (bytes, or as in "6GiB"), `pins` are {id of a task, or a glob of ids: device}.

    The search counts its budget in steps, so that equal input gives an equal plan; `budget_s` is a ceiling in
    seconds that cuts it short, which the plan then says: `stopped` is `time`. Raises PlanError with one sentence
    for a graph that is none or cannot be planned, DeviceError for an unknown device, MemoryCapError when nothing
    fits.
    """
    if objective not in (*OBJECTIVES,):
        raise PlanError(f"objective={objective!r} is not known; give one of {', '.join(OBJECTIVES)}")
    if budget_s is not None and not (isinstance(budget_s, (int, float)) and budget_s > 0):
        raise PlanError(
            f"budget_s={budget_s!r} leaves no time to plan; give seconds above 0, or leave it out"
        )
    for word, given, such in (("memory", memory, "{device: bytes}"), ("pins", pins, "{task: device}")):
        if given is not None and not isinstance(given, Mapping):
            raise PlanError(f"{word}={given!r} is no mapping; give {such}")
    with uncollected():
        costed = read(graph, machine)
        if memory:
            caps = {device: parse_bytes(cap) for device, cap in memory.items()}
            costed = replace(costed, machine=costed.machine.with_memory(caps))
        return OBJECTIVES[objective](pinned(costed, pins or {}), budget_s=budget_s)


def pinned(costed: CostedGraph, pins: Mapping[str, str]) -> CostedGraph:
    """The graph with clusters bound to devices by name, or by a glob of names: a plain name goes before a glob, and a
    long glob before a short one.

    Raises PlanError for a name that no cluster has and for a device that cannot run one, DeviceError for one that the
    machine lacks.
    """
    if not pins:
        return costed
    chosen: dict[str, str] = {}
    # A node of a networkx graph may be anything, and its task is called what it is as text.
    named = [(str(pattern), device) for pattern, device in pins.items()]
    for pattern, device in sorted(named, key=lambda pin: (pin[0] in costed.cluster, len(pin[0]), pin[0])):
        costed.machine.require(device)
        complaint = f"pins={{{pattern!r}: {device!r}}} names no task of {costed.graph.name!r}"
        chosen |= dict.fromkeys(meant(pattern, costed.cluster, complaint), device)
    clusters = tuple(
        _bound(cluster, chosen[cluster.name], costed) if cluster.name in chosen else cluster
        for cluster in costed.clusters
    )
    return replace(costed, clusters=clusters)


def _bound(cluster: Cluster, device: str, costed: CostedGraph) -> Cluster:
    d = costed.index[device]
    if cluster.seconds[d] is None:
        able = [name for name, s in zip(costed.index, cluster.seconds) if s is not None]
        raise PlanError(
            f"task {cluster.name!r} is pinned to {device}, which cannot run it; it can run on {' or '.join(able)}"
        )
    return cluster.on(d)
