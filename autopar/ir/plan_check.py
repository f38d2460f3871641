"""Validity of a plan: its lower bound, and for a plan read from a file, its names and numbers.

Feasibility is not checked here: users may edit orders, and `planner.replan` computes new times.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

from ..errors import BoundWarning, PlanError
from .costed import CostedGraph

ROUNDING = 1e-9
"""Relative error of summed floats by which a bound may exceed the plan's time."""

Row: TypeAlias = tuple[Iterable[object], Collection[object], str, str]
"""Used names, existing names, the field that uses them, and their kind."""


def sound(bound: float, reached: float, makespan: float = 0.0) -> float:
    """Return the lower bound clamped to [0, reached], in seconds; `reached` is the makespan or a difference of times.

    A bound that exceeds `reached` by more than rounding becomes 0, with a BoundWarning.
    """
    if bound <= reached + max(reached, makespan) * ROUNDING + sys.float_info.min:
        return max(0.0, min(bound, reached))
    warnings.warn(
        f"the lower bound of {bound} s is above a plan that takes {reached} s: a fault of autopar, please report it "
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
    for text in chain(_costs(plan.costed), _steps(plan), _figures(plan)):
        raise PlanError(f"{where} is not a plan: {text}; undo the edit, or plan again")


def _costs(costed: CostedGraph) -> Iterator[str]:
    graph, clusters, count = costed.graph, costed.clusters, len(costed.machine.devices)
    yield from _each([cluster.name for cluster in clusters], costed.cluster, "clusters", "cluster")
    tasks = [task for cluster in clusters for task in cluster.tasks]
    yield from _each(tasks, graph.task, "the tasks of its clusters", "task")
    yield from _unknown(([cost.task for cost in costed.costs], graph.task, "costs", "task"))
    for what, own in (
        *((f"cluster {cluster.name!r}", cluster.seconds) for cluster in clusters),
        *((f"the cost of {cost.task!r}", cost.seconds) for cost in costed.costs),
    ):
        if len(own) != count:
            yield f"{what} has seconds for {len(own)} devices, and there are {count}"
        yield from _no_numbers(what, own)
    there = {*graph.inputs, *graph.state, *costed.producer}
    for cluster in clusters:
        what = f"cluster {cluster.name!r}"
        if not cluster.tasks:
            yield f"{what} has no task"
        yield from _unknown(([*cluster.reads, *cluster.makes], graph.value, what, "value"))
        for value in cluster.reads:
            if value not in there:
                yield f"{what} reads {value!r}, which no cluster makes"
        yield from _unknown(
            (cluster.after, costed.cluster, what, "cluster"),
        )
        yield from _no_numbers(what, [cluster.dispatch_s, cluster.workspace_bytes])
    ends = [device for _, device in (*costed.homes, *costed.deliver)]
    yield from _unknown(
        ([name for name, _ in costed.homes], {*graph.inputs, *graph.state}, "homes", "input or state"),
        ([name for name, _ in costed.deliver], graph.value, "deliver", "value"),
        (ends, {*costed.index, ""}, "homes or deliver", "device"),
    )


def _steps(plan: Any) -> Iterator[str]:
    """Yield errors in clusters and transfers."""
    costed, machine = plan.costed, plan.costed.machine
    lanes = {device.name: device.compute_lanes for device in machine.devices}
    yield from _each([step.cluster for step in plan.placed], costed.cluster, "placed", "cluster")
    for step in plan.placed:
        what = f"the place of {step.cluster!r}"
        yield from _unknown(([step.device], lanes, what, "device"))
        yield from _unknown(([step.lane], lanes[step.device], what, f"lane of {step.device}"))
        yield from _no_times(f"cluster {step.cluster!r}", step.start, step.end)
    for sent in plan.transfers:
        what = f"the transfer of {sent.value!r}"
        yield from _unknown(
            ([sent.value], costed.graph.value, what, "value"),
            ([sent.src, sent.dst], lanes, what, "device"),
            ([sent.lane], machine.lanes, what, "lane"),
        )
        yield from _no_times(what, sent.start, sent.end)
        yield from _no_numbers(what, [sent.ready, sent.bytes])


def _figures(plan: Any) -> Iterator[str]:
    """Yield errors in resident state, memory, and the figures of the plan."""
    devices = plan.costed.index
    yield from _unknown(
        ([state for state, _ in plan.resident], plan.costed.graph.state, "resident", "state"),
        ([device for _, device in plan.resident], devices, "resident", "device"),
        ([used.device for used in plan.memory], devices, "memory", "device"),
        ([device for device, _ in plan.singles], devices, "singles", "device"),
    )
    for used in plan.memory:
        yield from _no_numbers(f"memory of {used.device}", chain(*used.steps))
    figures = [plan.makespan, *(one for _, one in plan.singles)]
    yield from _no_numbers("the plan", [*figures, *(one.makespan for one in plan.candidates)])
    ends = [0.0, *(step.end for step in (*plan.placed, *plan.transfers))]
    ends += [time for used in plan.memory for time, _ in used.steps]
    if max(ends) > plan.makespan * (1 + ROUNDING):
        yield f"its makespan is {plan.makespan} s, and something in it is at {max(ends)} s"


def _each(names: Collection[str], all_of: Collection[str], what: str, kind: str) -> Iterator[str]:
    """Yield errors unless each name occurs once."""
    yield from _unknown((names, all_of, what, kind))
    yield from (f"{what} has {kind} {name!r} twice" for name, count in Counter(names).items() if count > 1)
    named = {*names}
    yield from (f"{what} lacks {kind} {name!r}" for name in all_of if name not in named)


def _unknown(*rows: Row) -> Iterator[str]:
    for names, known, what, kind in rows:
        yield from (f"{what} names {name!r}, which is not a {kind}" for name in names if name not in known)


def _no_times(what: str, start: float, end: float) -> Iterator[str]:
    yield from _no_numbers(what, [start, end])
    if start > end:
        yield f"{what} is said to last from {start} to {end} s"


def _no_numbers(what: str, numbers: Iterable[float | None]) -> Iterator[str]:
    for number in numbers:
        if number is not None and not 0 <= number < math.inf:
            yield f"{what} has the number {number}; it must be finite, and from 0 on"
