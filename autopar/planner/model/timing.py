"""A simulated schedule as a plan, with the bytes in use on each device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, chain
from typing import Any

from ...ir.plan import Plan
from ...ir.timeline import Memory, Placed, Transfer
from .simulator import Simulation


def timing(simulation: Simulation) -> Plan:
    """Return a simulated schedule as a plan without bound and reasons, simultaneous steps ordered by turn."""
    instance, first = simulation.instance, simulation.instance.clusters
    placed = [
        Placed(
            instance.names[r],
            instance.devices[simulation.device[r]],
            simulation.lane[r],
            simulation.start[r],
            simulation.end[r],
        )
        for r in sorted(range(first), key=simulation.when)
    ]
    transfers = []
    lanes = {
        ends: instance.costed.machine.copy_lane(instance.devices[ends[0]], instance.devices[ends[1]])
        for ends in {(hop.src, hop.dst) for _, hop in simulation.moves}
    }
    for number in sorted(range(first, len(simulation.start)), key=simulation.when):
        v, hop = simulation.moves[number - first]
        ends = instance.devices[hop.src], instance.devices[hop.dst]
        times = simulation.start[number], simulation.end[number], simulation.ready[number]
        transfers.append(
            Transfer(instance.values[v], *ends, lanes[hop.src, hop.dst], *times, instance.bytes[v])
        )
    return Plan(
        instance.costed,
        simulation.schedule.policy,
        tuple(placed),
        tuple(transfers),
        _residency(simulation),
        memory(simulation),
        simulation.makespan,
    )


def _residency(simulation: Simulation) -> tuple[tuple[str, str], ...]:
    """Return (state, device) for each device with resident state, its home included, in graph order."""
    instance, costed = simulation.instance, simulation.instance.costed
    holders: dict[str, dict[int, None]] = {
        name: {} for name in costed.graph.state if name in costed.graph.resident
    }
    for r, cluster in enumerate(costed.clusters):
        for name in cluster.reads:
            if name in holders:
                holders[name][simulation.device[r]] = None
    return tuple((name, instance.devices[d]) for name, devices in holders.items() for d in sorted(devices))


def memory(simulation: Simulation) -> tuple[Memory, ...]:
    """Return the bytes over time on each device of a simulated schedule.

    Each storage counts once. Inputs and state at home, and state on each device that reads it, count all the
    time. A made value or consumed input counts from the start of its cluster or transfer to the end of its
    last local reader or outgoing transfer. If it is kept or delivered there, it counts to the end of the
    call; but if inputs are consumed, delivered values may be freed on arrival. Workspace counts while its
    cluster runs. A view shares the storage of the viewed value; a transferred value has its own.

    Sums are exact, also of the fractions that graph files may have: a device that frees all of it is at 0.
    """
    instance = simulation.instance
    changes: list[dict[float, Any]] = [{0.0: 0} for _ in instance.devices]
    scratch = (
        (simulation.device[r], simulation.start[r], simulation.end[r], n)
        for r, n in enumerate(instance.workspace)
        if n
    )
    for d, start, end, nbytes in chain(_spans(simulation), scratch):
        at = changes[d]
        count = nbytes if isinstance(nbytes, int) else Fraction(nbytes)
        at[start] = at.get(start, 0) + count
        if end < math.inf:
            at[end] = at.get(end, 0) - count
    usage = []
    for place, at in zip(instance.costed.machine.devices, changes):
        times = sorted(at)
        levels = map(_number, accumulate(map(at.__getitem__, times)))
        usage.append(Memory(place.name, tuple(zip(times, levels)), place.memory_bytes))
    return tuple(usage)


def _number(exact: Any) -> Any:
    """Return an exact number of bytes as a plan and its file have it."""
    return exact if isinstance(exact, int) else float(exact)


def _spans(simulation: Simulation) -> Iterator[tuple[int, float, float, int]]:
    """Yield device, start and end in seconds, and bytes of each storage, including its views and kept state.
    O(V + E) for V steps."""
    instance, costed = simulation.instance, simulation.instance.costed
    graph = costed.graph
    names, device, first, ended = instance.values, simulation.device, instance.clusters, simulation.end
    # `roots`: storage of a value on a device, if not its own. `alive`: start, end, bytes of a storage.
    roots: dict[tuple[str, int], tuple[str, int]] = {}
    alive: dict[tuple[str, int], list[Any]] = {}

    def hold(v: int, d: int, since: float, until: float) -> None:
        """Extend the lifetime of a value's storage on a device to include this span."""
        name = names[v]
        while (name, d) not in roots and name in instance.views:
            name = instance.views[name]
        key = roots.get((name, d), (name, d))
        if key in alive:
            span = alive[key]
            span[0], span[1] = min(span[0], since), max(span[1], until)
        else:
            value = graph.value[name]
            whole = 0 if name in graph.producer else graph.value[value.storage].bytes
            alive[key] = [since, until, max(value.bytes, whole)]

    freed = 0.0 if costed.consumed else math.inf
    for d, storages in enumerate(instance.initial):
        for storage, nbytes in storages.items():
            alive[storage, d] = [0.0, freed, nbytes]
    for name in (*graph.inputs, *graph.state):
        where = costed.home.get(name, costed.machine.host)
        if where:
            home = costed.index.get(where, 0)
            roots[name, home] = (graph.value[name].storage, home)
    for r, resident in enumerate(instance.resident):
        for storage, nbytes in resident:
            span = alive.setdefault((storage, device[r]), [0.0, math.inf, nbytes])
            span[1] = math.inf
            if storage not in instance.initial[device[r]]:
                span[2] = max(span[2], nbytes)
        for name in costed.clusters[r].reads if instance.holders else ():
            if name in costed.graph.resident:
                roots.setdefault((name, device[r]), (graph.copies[name][0], device[r]))
    for step, (v, hop) in enumerate(simulation.moves, first):
        key = names[v], hop.dst
        if instance.views:
            roots[key] = key
        alive[key] = [
            simulation.start[step],
            math.inf if instance.stays[v] else ended[step],
            instance.bytes[v],
        ]
    for r, d in enumerate(device):
        until = ended[r]
        for v in instance.makes[r]:
            if instance.views:
                hold(v, d, simulation.start[r], until)
            else:
                alive[names[v], d] = [simulation.start[r], until, instance.bytes[v]]
        for v in instance.reads[r]:
            span_here = None if instance.views else alive.get((names[v], d))
            if span_here is None:
                hold(v, d, until, until)
            elif until > span_here[1]:
                span_here[1] = until
    for step, (v, hop) in enumerate(simulation.moves, first):
        hold(v, hop.src, ended[step], ended[step])
    for v, readers in enumerate(instance.carry):
        for d in {device[r] for r in readers}:
            hold(v, d, simulation.makespan, math.inf)
    for name, wanted in () if costed.consumed else costed.deliver:
        v = instance.value[name]
        maker = instance.maker[v]
        source = device[maker] if maker >= 0 else instance.home[v]
        hold(v, costed.index[wanted] if wanted else source, simulation.makespan, math.inf)
    for (_, d), (since, until, nbytes) in alive.items():
        yield d, since, until, nbytes
