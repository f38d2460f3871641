"""Everything on one device: the plan to beat."""

from __future__ import annotations

from ...ir.costed import CostedGraph
from ..candidates import Race
from ..model.instance import Instance
from ..model.simulator import Schedule
from .heft import list_schedule
from .ranking import urgent_first


def single(instance: Instance, device: int) -> list[Schedule]:
    """Schedules with all runs on `device`: on one queue, and over all its queues when there are several.

    Clusters that cannot run there go where they end first (`is_single` says whether there are any).
    """
    policy = f"single {instance.devices[device]}"
    found = []
    allowed = [
        (device,) if device in instance.allowed[r] else instance.allowed[r] for r in range(instance.clusters)
    ]
    if is_single(instance, device):
        found.append(Schedule(policy, {instance.lane_names[device][0]: instance.names}))
    if not found or len(instance.lane_names[device]) > 1:
        found.append(list_schedule(instance, policy, urgent_first(instance), allowed=allowed))
    return found


def is_single(instance: Instance, device: int) -> bool:
    """True if every cluster can run on `device`."""
    return all(device in allowed for allowed in instance.allowed)


def alone(costed: CostedGraph, device: str) -> float | None:
    """The seconds of a costed graph with all runs on a device; None where one cannot run there or it does not fit."""
    instance = Instance(costed)
    d = costed.index[device]
    if not is_single(instance, d):
        return None
    race = Race(instance)
    entries = [race.enter(schedule) for schedule in single(instance, d)]
    return min((entry.makespan for entry in entries if entry and not entry.over), default=None)
