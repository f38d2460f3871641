"""Validity of a plan: its lower bound, and for a plan read from a file, its names and numbers.

Feasibility is not checked here: users may edit orders, and `planner.replan` computes new times.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from ..errors import BoundWarning, PlanError
from .costed import CostedGraph

ROUNDING = 1e-9
"""Relative error of summed floats by which a bound may exceed the makespan."""

Row: TypeAlias = tuple[Sequence[object], Collection[object], str, str]
"""Used names, existing names, the field that uses them, and their kind."""


def sound_bound(bound: float, makespan: float) -> float:
    """Return the lower bound of a plan clamped to [0, makespan], in seconds.

    A bound that exceeds the makespan by more than rounding becomes 0, with a BoundWarning.
    """
    if bound <= makespan * (1 + ROUNDING) + sys.float_info.min:
        return max(0.0, min(bound, makespan))
    warnings.warn(
        f"the lower bound of {bound} s is above a plan that takes {makespan} s: a fault of autopar, please report it "
        "with the graph. The plan holds; of how near it is to the shortest nothing is claimed",
        BoundWarning,
        stacklevel=2,
    )
    return 0.0


def check(where: str, plan: Any) -> None:
    """Raise PlanError or DeviceError with the first error of a plan read from the file `where`.

    Linear in clusters, values and steps.
    """
    plan.costed.machine.check()
    plan.costed.graph.check()
    for text in chain(_names(plan), _numbers(plan)):
        raise PlanError(f"{where} is not a valid plan: {text}; correct the file, or plan again")


def _names(plan: Any) -> Iterator[str]:
    """Yield errors in the names that a plan uses."""
    costed: CostedGraph = plan.costed
    graph, clusters, machine = costed.graph, costed.clusters, costed.machine
    lanes = {device.name: device.compute_lanes for device in machine.devices}
    rows: list[Row] = [([task for cluster in clusters for task in cluster.tasks], graph.task, _TASKS, "task")]
    rows += [([cluster.name for cluster in clusters], costed.cluster, "clusters", "cluster")]
    rows += [([step.cluster for step in plan.placed], costed.cluster, "placed", "cluster")]
    for names, known, what, kind in rows:
        yield from (f"{what} has {kind} {name!r} twice" for name, n in Counter(names).items() if n > 1)
        yield from (f"{what} lacks {kind} {name!r}" for name in known if name not in {*names})
    rows += [
        ([cost.task for cost in costed.costs], graph.task, "costs", "task"),
        ([name for name, _ in costed.homes], {*graph.inputs, *graph.state}, "homes", "input or state"),
        ([name for name, _ in costed.deliver], graph.value, "deliver", "value"),
        ([end for _, end in (*costed.homes, *costed.deliver)], {*lanes, ""}, "homes or deliver", "device"),
        ([state for state, _ in plan.resident], graph.state, "resident", "state"),
        ([device for _, device in plan.resident], lanes, "resident", "device"),
        ([used.device for used in plan.memory], lanes, "memory", "device"),
        ([device for device, _ in plan.singles], lanes, "singles", "device"),
    ]  # fmt: skip
    there = {*graph.inputs, *graph.state, *costed.producer}
    for cluster in clusters:
        what = f"cluster {cluster.name!r}"
        if not cluster.tasks:
            yield f"{what} has no task"
        rows.append(([*cluster.reads, *cluster.makes], graph.value, what, "value"))
        rows.append((cluster.reads, there, what, "value that a cluster makes"))
        rows.append((cluster.after, costed.cluster, what, "cluster"))
    for step in plan.placed:
        what = f"the place of {step.cluster!r}"
        rows.append(([step.device], lanes, what, "device"))
        own = lanes.get(step.device, (step.lane,))
        if step.lane not in own:
            yield f"{step.cluster!r} is on {step.device}, but its lane is {step.lane!r}; set lane to {own[0]!r}"
    for sent in plan.transfers:
        what = f"the transfer of {sent.value!r}"
        rows.append(([sent.value], graph.value, what, "value"))
        rows.append(([sent.src, sent.dst], lanes, what, "device"))
        rows.append(([sent.lane], machine.lanes, what, "lane"))
    for names, known, what, kind in rows:
        yield from (f"{what} names {name!r}, which is not a {kind}" for name in names if name not in known)


_TASKS = "the tasks of its clusters"


def _numbers(plan: Any) -> Iterator[str]:
    """Yield errors in the numbers of a plan, whose names are right."""
    costed: CostedGraph = plan.costed
    count = len(costed.machine.devices)
    seconds = [(f"cluster {cluster.name!r}", cluster.seconds) for cluster in costed.clusters]
    seconds += [(f"the cost of {cost.task!r}", cost.seconds) for cost in costed.costs]
    for what, cluster in seconds:
        if len(cluster) != count:
            yield f"{what} has seconds for {len(cluster)} devices, and there are {count}"
    steps = [(f"cluster {step.cluster!r}", step.start, step.end) for step in plan.placed]
    steps += [(f"the transfer of {sent.value!r}", sent.start, sent.end) for sent in plan.transfers]
    spoken = [plan.makespan, *(one for _, one in plan.singles), *(one.makespan for one in plan.candidates)]
    for what, numbers in (
        *seconds,
        *(
            (f"cluster {cluster.name!r}", (cluster.dispatch_s, cluster.workspace_bytes))
            for cluster in costed.clusters
        ),
        *((what, times) for what, *times in steps),
        *((f"the transfer of {sent.value!r}", (sent.ready, sent.bytes)) for sent in plan.transfers),
        *((f"memory of {used.device}", tuple(chain(*used.steps))) for used in plan.memory),
        ("the plan", spoken),
    ):
        for number in numbers:
            if number is not None and not 0 <= number < math.inf:
                yield f"{what} has the number {number}; it must be finite, and from 0 on"
    for what, start, end in steps:
        if start > end:
            yield f"{what} is said to last from {start} to {end} s"
    ends = [0.0, *(end for _, _, end in steps), *(time for used in plan.memory for time, _ in used.steps)]
    if max(ends) > plan.makespan * (1 + ROUNDING):
        yield f"its makespan is {plan.makespan} s, and something in it is at {max(ends)} s"
