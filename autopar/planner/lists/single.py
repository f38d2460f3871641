"""Schedules with everything on one device, and the time of a call after moving the model to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir.costed import CostedGraph
from ...ir.graph import Graph
from ...ir.machine import Machine
from ..candidates import Race
from ..model.instance import Instance
from ..model.simulator import Schedule
from .heft import list_schedule, urgent_first

Price = Callable[[Graph, str], CostedGraph]
"""Costs a graph with all tasks and state on one device."""


def single(instance: Instance, device: int) -> list[Schedule]:
    """Return schedules with all clusters on `device`: on one queue, and on all if there are several.

    Clusters that cannot run there go where they end first (none if `is_single`).
    """
    policy = f"single {instance.devices[device]}"
    schedules = []
    allowed = [
        (device,) if device in instance.allowed[r] else instance.allowed[r] for r in range(instance.clusters)
    ]
    if is_single(instance, device):
        schedules.append(Schedule(policy, {instance.lane_names[device][0]: instance.names}))
    if not schedules or len(instance.lane_names[device]) > 1:
        schedules.append(list_schedule(instance, policy, urgent_first(instance), allowed=allowed))
    return schedules


def is_single(instance: Instance, device: int) -> bool:
    """Return True if every cluster can run on `device`."""
    return all(device in allowed for allowed in instance.allowed)


def _alone(costed: CostedGraph, device: str) -> float | None:
    """Return the seconds of a costed graph on one device; None if it cannot run there or does not fit."""
    instance = Instance(costed)
    d = costed.index[device]
    if not is_single(instance, d):
        return None
    race = Race(instance)
    entries = [race.enter(schedule) for schedule in single(instance, d)]
    return min((entry.makespan for entry in entries if entry and not entry.over), default=None)


def seconds_moved(graph: Graph, machine: Machine, price: Price) -> tuple[tuple[str, float | None], ...]:
    """Return, for each device, the seconds of a call after `model.to(device)`; None if it cannot run or does not fit.

    State stays on the device. Each input comes from its place once, and each output returns once.
    """
    free = replace(
        graph, tasks=tuple(replace(task, home=False) if task.home else task for task in graph.tasks)
    )
    return tuple((name, _alone(price(free, name), name)) for name in machine.device)
