"""A proven lower bound on the makespan: no schedule of this graph on this machine is shorter."""

from __future__ import annotations

import math

from ..problem import Problem

ROUNDS = 40
"""Rounds of the multiplicative-weights search for good prices, fewer on large graphs: any prices give a valid
bound."""
STEPS = 100_000
"""Runs priced in all, which is what makes the rounds fewer."""


def lower_bound(problem: Problem) -> float:
    """The largest of three bounds, in seconds.

    The longest way through the graph if queues and wires were never busy; the load of all devices, from the
    dual of the linear program that may cut runs into pieces (Lenstra, Shmoys and Tardos, Mathematical
    Programming 46, 1990); and the host's dispatch of every run.
    """
    if not problem.runs:
        return 0.0
    earliest, path = _longest_way(problem)
    return max(path, _load(problem, earliest), sum(problem.dispatch))


def _longest_way(problem: Problem) -> tuple[list[float], float]:
    """For each device when any run can start on it at the earliest, and when the last value can be
    delivered."""
    everywhere = range(len(problem.devices))
    ends: list[list[float]] = []
    arrival: dict[int, list[float]] = {}
    first = [math.inf] * len(problem.devices)
    last = 0.0
    for v, home in enumerate(problem.home):
        if home >= 0:
            # Resident state may be anywhere without having travelled.
            still = problem.values[v] in problem.holders
            arrival[v] = [0.0 if still else problem.travel(v, home, d) for d in everywhere]
    for r in range(problem.runs):
        base = max((min(ends[p]) for p in problem.before[r]), default=0.0)
        row = [math.inf] * len(problem.devices)
        for d in problem.allowed[r]:
            start = max((arrival[v][d] for v in problem.reads[r]), default=0.0)
            start = max(start, base)
            first[d] = min(first[d], start)
            row[d] = start + problem.seconds[r][d]
        ends.append(row)
        last = max(last, min(row))
        for v in problem.makes[r]:
            arrival[v] = [min(row[e] + problem.travel(v, e, d) for e in everywhere) for d in everywhere]
    for v, devices in enumerate(problem.deliver):
        last = max(last, max((arrival[v][d] for d in devices), default=0.0))
    return first, last


def _load(problem: Problem, first: list[float]) -> float:
    """The least makespan that gives every run its share of a device.

    A device is of use only to a schedule that lasts longer than the time its first run can start. So the
    schedule uses the devices that open before it ends, and the bound is the least over how many of them those
    are.
    """
    order = sorted(
        (d for d in range(len(problem.devices)) if first[d] < math.inf), key=lambda d: (first[d], d)
    )
    best = math.inf
    for used in range(1, len(order) + 1):
        devices = order[:used]
        opens = first[devices[-1]]
        if opens < best:
            best = min(best, max(opens, _prices(problem, devices, first)))
    return best if best < math.inf else 0.0


def _prices(problem: Problem, devices: list[int], first: list[float]) -> float:
    lanes = [len(problem.lane_names[d]) for d in devices]
    rows = [
        tuple(problem.seconds[r][d] if d in problem.allowed[r] else math.inf for d in devices)
        for r in range(problem.runs)
    ]
    if any(min(row) == math.inf for row in rows):
        return math.inf
    price = [1.0 / sum(lanes)] * len(devices)
    best = 0.0
    for _ in range(max(5, min(ROUNDS, STEPS // len(rows))) if len(devices) > 1 else 1):
        load = [0.0] * len(devices)
        total = 0.0
        for row in rows:
            costs = [p * s if s < math.inf else math.inf for p, s in zip(price, row)]
            cheapest = min(costs)
            total += cheapest
            at = costs.index(cheapest)
            load[at] += row[at]
        total += sum(p * n * first[d] for p, n, d in zip(price, lanes, devices))
        best = max(best, total)
        finish = [first[d] + work / n for work, n, d in zip(load, lanes, devices)]
        longest = max(finish)
        if longest <= 0:
            break
        price = [p * (1.0 + 0.5 * (f / longest - 0.5)) for p, f in zip(price, finish)]
        scale = sum(p * n for p, n in zip(price, lanes))
        price = [p / scale for p in price]
    return best
