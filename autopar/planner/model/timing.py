"""A schedule with its times: `simulate`."""

from __future__ import annotations

from ...ir.costed import CostedGraph
from ...ir.plan import Plan
from ...ir.timeline import Placed, Transfer
from .instance import Instance
from .memory import memory
from .simulator import Play, Schedule


def simulate(costed: CostedGraph, schedule: Schedule, instance: Instance | None = None) -> Plan:
    """Simulate a schedule: start everything as early as the orders allow.

    `instance` avoids building it again. Raises PlanError for a cluster that is missing, listed twice, unknown or on a
    device where it cannot run, for a transfer without a route, and for a deadlock.
    """
    return timing(Play(instance or Instance(costed), schedule))


def timing(play: Play) -> Plan:
    """Return the result of a simulation as a plan without bound and reasons; simultaneous steps by turn."""
    instance, first = play.instance, play.instance.clusters
    placed = [
        Placed(
            instance.names[r],
            instance.devices[play.device[r]],
            play.lane[r],
            play.start[r],
            play.end[r],
            tuple(play.more.get(r, ())),
        )
        for r in sorted(range(first), key=play.when)
    ]
    transfers = []
    lanes = {
        ends: instance.costed.machine.copy_lane(instance.devices[ends[0]], instance.devices[ends[1]])
        for ends in {(hop.src, hop.dst) for _, hop in play.moves}
    }
    for number in sorted(range(first, len(play.start)), key=play.when):
        v, hop = play.moves[number - first]
        ends = instance.devices[hop.src], instance.devices[hop.dst]
        times = play.start[number], play.end[number], play.ready[number]
        transfers.append(
            Transfer(instance.values[v], *ends, lanes[hop.src, hop.dst], *times, instance.bytes[v])
        )
    return Plan(
        instance.costed,
        play.policy,
        tuple(placed),
        tuple(transfers),
        _residency(instance, play.device),
        memory(instance, play),
        play.makespan,
    )


def _residency(instance: Instance, device: list[int]) -> tuple[tuple[str, str], ...]:
    """Return (state, device) for each device with resident state, its home included, in graph order."""
    costed = instance.costed
    found: dict[str, dict[int, None]] = {name: {} for name in costed.graph.state if name in costed.resident}
    for r, cluster in enumerate(costed.clusters):
        for name in cluster.reads:
            if name in found:
                found[name][device[r]] = None
    return tuple((name, instance.devices[d]) for name, devices in found.items() for d in sorted(devices))
