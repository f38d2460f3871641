"""Lanes that never wait for a run while they have another to start, where wires serve first come, first served.

Non-delay schedules (Baker, "Introduction to Sequencing and Scheduling", Wiley, 1974). An order made beforehand keeps a
lane idle for as long as a crowded wire is late with what the next run reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ..model.orders import in_order
from ..model.problem import Problem
from ..model.simulator import Schedule
from ..model.transfers import Steps


def free(problem: Problem) -> bool:
    """Whether there is nothing that is left out here: copy queues of their own, a host that dispatches, several lanes
    for one run."""
    return not problem.costed.machine.queued and not problem.modes


def crowded(problem: Problem) -> bool:
    """The same, where copies wait for wires besides."""
    return bool(problem.copy_lanes) and free(problem)


def nondelay(steps: Steps, urgency: Sequence[float], policy: str) -> tuple[Schedule, float]:
    """Placed runs, of those that can start on a device the one of least `urgency` first, and the makespan in seconds.

    For machines without copy queues, where no host dispatches, and runs of one lane. O((V + E) log V) for V steps.
    """
    problem, device, moves, waiting = steps.problem, steps.device, steps.moves, steps.waiting
    missing, first = [*steps.missing], problem.runs
    idle = [[*range(len(names))] for names in problem.lane_names]
    able: list[list[tuple[float, int]]] = [[] for _ in problem.devices]
    free = [0.0] * len(problem.copy_lanes)
    lane = [0] * first
    placed: list[tuple[int, int, tuple[int, ...]]] = []
    events: list[tuple[float, int]] = []
    now = 0.0
    ready = [step for step, count in enumerate(missing) if not count]
    while ready or events:
        touched: set[int] = set()
        if not ready:
            now = events[0][0]
            while events and events[0][0] == now:
                step = heappop(events)[1]
                if step < first:
                    touched.add(device[step])
                    heappush(idle[device[step]], lane[step])
                for later in waiting[step]:
                    missing[later] -= 1
                    if not missing[later]:
                        ready.append(later)
            ready.sort()
        for step in ready:
            if step < first:
                touched.add(device[step])
                heappush(able[device[step]], (urgency[step], step))
            else:
                v, hop = moves[step - first]
                begin = now if hop.lane < 0 else max(now, free[hop.lane])
                end = begin + (hop.latency_s + problem.bytes[v] * hop.s_per_byte)
                if hop.lane >= 0:
                    free[hop.lane] = end
                heappush(events, (end, step))
        ready.clear()
        for d in touched:
            while able[d] and idle[d]:
                r = heappop(able[d])[1]
                lane[r] = heappop(idle[d])
                placed.append((r, d, (lane[r],)))
                heappush(events, (now + problem.seconds[r][d], r))
    return in_order(problem, policy, placed), now
