"""Runs dealt to all devices in turn: a placement that moves as much as it can, to try a runtime with."""

from __future__ import annotations

from ..model.instance import Instance
from ..model.simulator import Schedule


def round_robin(instance: Instance, room: float = 1.0) -> Schedule:
    """Each cluster, in graph order, on the next queue of those it may use, whatever `room` there is; a colocate group
    counts as one cluster."""
    queues = [(d, lane) for d, lanes in enumerate(instance.lane_names) for lane in lanes]
    lanes: dict[str, list[str]] = {lane: [] for _, lane in queues}
    chosen: dict[int, int] = {}
    turn = 0
    for r in range(instance.clusters):
        group = instance.group[r]
        if group >= 0 and group in chosen:
            at = chosen[group]
        else:
            at = next(
                k % len(queues)
                for k in range(turn, turn + len(queues))
                if queues[k % len(queues)][0] in instance.allowed[r]
            )
            turn = at + 1
            if group >= 0:
                chosen[group] = at
        lanes[queues[at][1]].append(instance.names[r])
    return Schedule("round_robin", {lane: tuple(names) for lane, names in lanes.items()})
