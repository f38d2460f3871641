"""Validity of a plan that was read: all it names is there, and its numbers are numbers.

Nothing is said of whether it can be carried out: its orders may be edited, and `planner.replan` gives it new times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..errors import PlanError
from .costed import CostedGraph
from .sound import ROUNDING
from .steps import Placed, Transfer
from .timeline import Memory


def check(
    where: str,
    costed: CostedGraph,
    placed: Sequence[Placed],
    transfers: Sequence[Transfer],
    resident: Sequence[tuple[str, str]],
    memory: Sequence[Memory],
    makespan: float,
    singles: Sequence[tuple[str, float | None]],
    candidates: Sequence[Any],
    reasons: Sequence[Any],
    period: float | None,
    **_: Any,
) -> None:
    """Raise PlanError or DeviceError naming the first thing in the file `where` that makes the fields of a plan none.

    Linear in its clusters, values and steps.
    """
    fields = _Check(costed, where)
    fields.steps(placed, transfers)
    fields.held(resident, memory)
    fields.figures(makespan, period, singles, candidates)
    fields.weighed(reasons)
    ends = [0.0, *(step.end for step in placed), *(step.end for step in transfers)]
    ends += [time for used in memory for time, _ in used.steps]
    if max(ends) > makespan * (1 + ROUNDING):
        fields.wrong(f"its makespan is {makespan} s, and something in it is at {max(ends)} s")


class _Check:
    def __init__(self, costed: CostedGraph, where: str) -> None:
        self.costed, self.where = costed, where
        costed.machine.check()
        costed.graph.check()
        self.devices = {device.name for device in costed.machine.devices}
        self.names = {cluster.name for cluster in costed.clusters}
        self._costs()

    def steps(self, placed: Sequence[Placed], transfers: Sequence[Transfer]) -> None:
        """Check clusters and transfers."""
        machine, values = self.costed.machine, self.costed.graph.value
        lanes = {device.name: device.compute_lanes for device in machine.devices}
        self._each([step.cluster for step in placed], self.names, "placed", "cluster")
        for step in placed:
            self._known([step.device], self.devices, f"the place of {step.cluster!r}", "device")
            self._known(
                step.lanes, lanes[step.device], f"the place of {step.cluster!r}", f"lane of {step.device}"
            )
            self._times(f"cluster {step.cluster!r}", step.start, step.end)
        for sent in transfers:
            what = f"the transfer of {sent.value!r}"
            self._known([sent.value], values, what, "value")
            self._known([sent.src, sent.dst], self.devices, what, "device")
            self._known([sent.lane], machine.lanes, what, "lane")
            self._times(what, sent.start, sent.end)
            self._numbers(what, [sent.ready, sent.bytes])

    def held(self, resident: Sequence[tuple[str, str]], memory: Sequence[Memory]) -> None:
        """Check what devices keep."""
        self._known([state for state, _ in resident], self.costed.graph.state, "resident", "state")
        self._known([device for _, device in resident], self.devices, "resident", "device")
        self._known([used.device for used in memory], self.devices, "memory", "device")
        for used in memory:
            self._numbers(f"memory of {used.device}", [number for step in used.steps for number in step])

    def weighed(self, reasons: Sequence[Any]) -> None:
        """Check the reasons of placements."""
        self._known([reason.cluster for reason in reasons], self.names, "reasons", "cluster")
        weighed = [choice.device for reason in reasons for choice in reason.choices]
        self._known(weighed, self.devices, "the choices of reasons", "device")

    def figures(
        self,
        makespan: float,
        period: float | None,
        singles: Sequence[tuple[str, float | None]],
        candidates: Sequence[Any],
    ) -> None:
        """Check the figures of the whole plan."""
        self._known([device for device, _ in singles], self.devices, "singles", "device")
        figures = [makespan, period, *(one for _, one in singles)]
        self._numbers("the plan", [*figures, *(candidate.makespan for candidate in candidates)])

    def _costs(self) -> None:
        costed, graph, count = self.costed, self.costed.graph, len(self.costed.machine.devices)
        tasks = [task for cluster in costed.clusters for task in cluster.tasks]
        self._each([cluster.name for cluster in costed.clusters], self.names, "clusters", "cluster")
        self._each(tasks, graph.task, "the tasks of its clusters", "task")
        self._known([cost.task for cost in costed.costs], graph.task, "costs", "task")
        for what, own in (
            *((f"cluster {cluster.name!r}", cluster.seconds) for cluster in costed.clusters),
            *((f"the cost of {cost.task!r}", cost.seconds) for cost in costed.costs),
        ):
            if len(own) != count:
                self.wrong(f"{what} has seconds for {len(own)} devices, and there are {count}")
            self._numbers(what, own)
        there = {
            *graph.inputs,
            *graph.state,
            *(value for cluster in costed.clusters for value in cluster.makes),
        }
        for cluster in costed.clusters:
            what = f"cluster {cluster.name!r}"
            if not cluster.tasks:
                self.wrong(f"{what} has no task")
            self._known([*cluster.reads, *cluster.makes], graph.value, what, "value")
            lacking = next((value for value in cluster.reads if value not in there), None)
            if lacking is not None:
                self.wrong(f"{what} reads {lacking!r}, which no cluster makes")
            self._known(cluster.after, self.names, what, "cluster")
            self._known([d for d, _, _ in cluster.modes], range(count), what, "position of a device")
            self._numbers(
                what, [cluster.dispatch_s, cluster.workspace_bytes, *(s for _, _, s in cluster.modes)]
            )
        self._known(
            [name for name, _ in costed.homes], [*graph.inputs, *graph.state], "homes", "input or state"
        )
        self._known([name for name, _ in costed.deliver], graph.value, "deliver", "value")
        ends = [device for _, device in (*costed.homes, *costed.deliver)]
        self._known(ends, {*self.devices, ""}, "homes or deliver", "device")
        named = {*self.names, *graph.task, *graph.value}
        self._known([name for pair in costed.again for name in pair], named, "again", "run, task or value")

    def _each(self, names: Iterable[str], all_of: Collection[str], what: str, kind: str) -> None:
        """Every name once."""
        seen: set[str] = set()
        for name in names:
            self._known([name], all_of, what, kind)
            if name in seen:
                self.wrong(f"{what} has {kind} {name!r} twice")
            seen.add(name)
        left = next((name for name in all_of if name not in seen), None)
        if left is not None:
            self.wrong(f"{what} lacks {kind} {left!r}")

    def _known(self, names: Iterable[object], known: Collection[object], what: str, kind: str) -> None:
        for name in names:
            if name not in known:
                self.wrong(f"{what} names {name!r}, which is no {kind}")

    def _times(self, what: str, start: float, end: float) -> None:
        self._numbers(what, [start, end])
        if start > end:
            self.wrong(f"{what} is said to last from {start} to {end} s")

    def _numbers(self, what: str, numbers: Iterable[float | None]) -> None:
        for number in numbers:
            if number is not None and not 0 <= number < math.inf:
                self.wrong(f"{what} has the number {number}; it must be finite, and from 0 on")

    def wrong(self, text: str) -> None:
        """Raise PlanError."""
        raise PlanError(f"{self.where} is no plan: {text}; take the edit back, or plan again")
