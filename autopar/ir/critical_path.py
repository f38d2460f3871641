"""Critical path of a plan, the waits of each step, and slack.

A step is a `Placed` cluster or a `Transfer`. It waits for the data that it reads and for the previous step in
its lane, a transfer also for the previous one on its bus. Critical path and slack follow the critical path
method (Kelley and Walker, Critical-path planning and scheduling, 1959), with the lane orders of the plan
fixed. Linear in the waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from .costed import CostedGraph
from .timeline import Placed, Step, Transfer

Kind: TypeAlias = Literal["data", "order", "wire", "lane"]
_RANK = {"data": 3, "order": 2, "wire": 1, "lane": 0}


class _Wait(NamedTuple):
    """A wait for the end of step number `step`, because of `kind`."""

    step: int
    kind: Kind


@dataclass(frozen=True)
class Critical:
    """The waits of a plan.

    steps: clusters and transfers by start.
    waits: for each step, everything it waited for.
    last: for each step, the wait that ended last; None: none.
    slack: for each step, how many seconds later it could end without making the plan longer.
    path: numbers of steps from the start to the end of the call; each waited for the previous one.
    """

    steps: tuple[Step, ...]
    waits: tuple[tuple[_Wait, ...], ...]
    last: tuple[_Wait | None, ...]
    path: tuple[int, ...]
    slack: tuple[float, ...]

    @property
    def on_path(self) -> frozenset[int]:
        """Numbers of the steps on the critical path."""
        return frozenset(self.path)

    @property
    def compute_s(self) -> float:
        """Seconds of computation on the path."""
        return self._seconds(Placed)

    @property
    def transfer_s(self) -> float:
        """Seconds of transfers on the path."""
        return self._seconds(Transfer)

    def ready(self, number: int) -> float:
        """Return the ready time of a step in seconds: the latest end of its data and of the steps ordered before
        it."""
        waits = [wait for wait in self.waits[number] if wait.kind in ("data", "order")]
        return max((self.steps[wait.step].end for wait in waits), default=0.0)

    @cached_property
    def number(self) -> dict[str, int]:
        """Step number of each cluster."""
        return {step.cluster: index for index, step in enumerate(self.steps) if isinstance(step, Placed)}

    def _seconds(self, kind: type[Step]) -> float:
        steps = (self.steps[number] for number in self.path)
        return sum(step.end - step.start for step in steps if isinstance(step, kind))


def critical(costed: CostedGraph, steps: tuple[Step, ...]) -> Critical:
    """Return the waits, critical path and slack of the steps of a plan, sorted by start."""
    waits = tuple(_waits(costed, steps))
    last = tuple(_binding(steps, waited) for waited in waits)
    return Critical(steps, waits, last, _path(steps, last), _slack(steps, waits))


def _waits(costed: CostedGraph, steps: tuple[Step, ...]) -> list[tuple[_Wait, ...]]:
    machine = costed.machine
    at: dict[tuple[str, str], int] = {}
    index_of: dict[str, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Placed):
            index_of[step.cluster] = index
            for value in costed.cluster[step.cluster].makes:
                at[value, step.device] = index
    for index, step in enumerate(steps):
        if isinstance(step, Transfer):
            at.setdefault((step.value, step.dst), index)
    in_lane: dict[str, int] = {}
    on_wire: dict[str, int] = {}
    waits = []
    for index, step in enumerate(steps):
        names: dict[int, Kind] = {}
        if isinstance(step, Placed):
            cluster = costed.cluster[step.cluster]
            sources = [at.get((value, step.device)) for value in cluster.reads]
            names.update((source, "data") for source in sources if source is not None)
            for earlier in cluster.after:
                if earlier in index_of:
                    names.setdefault(index_of[earlier], "order")
        else:
            source = at.get((step.value, step.src))
            if source is not None:
                names[source] = "data"
            link = machine.link.get((step.src, step.dst))
            if link and link.wire:
                if link.wire in on_wire:
                    names.setdefault(on_wire[link.wire], "wire")
                on_wire[link.wire] = index
        if isinstance(step, Placed) or machine.queued:
            if step.lane in in_lane:
                names.setdefault(in_lane[step.lane], "lane")
            in_lane[step.lane] = index
        names.pop(index, None)
        waits.append(tuple(_Wait(number, kind) for number, kind in names.items()))
    return waits


def _binding(steps: tuple[Step, ...], waits: tuple[_Wait, ...]) -> _Wait | None:
    return max(waits, key=lambda wait: (steps[wait.step].end, _RANK[wait.kind], -wait.step), default=None)


def _path(steps: tuple[Step, ...], last: tuple[_Wait | None, ...]) -> tuple[int, ...]:
    if not steps:
        return ()
    number: int | None = max(range(len(steps)), key=lambda index: (steps[index].end, index))
    path: dict[int, None] = {}
    while number is not None and number not in path:
        path[number] = None
        wait = last[number]
        number = wait.step if wait else None
    return tuple(reversed(path))


def _slack(steps: tuple[Step, ...], waits: tuple[tuple[_Wait, ...], ...]) -> tuple[float, ...]:
    """Compute slack in reverse topological order: by start, steps of zero length would tie."""
    successors: list[list[int]] = [[] for _ in steps]
    open_successors = [0] * len(steps)
    for index, waited in enumerate(waits):
        for wait in waited:
            successors[wait.step].append(index)
            open_successors[wait.step] += 1
    end = max((step.end for step in steps), default=0.0)
    slack = [0.0] * len(steps)
    ready = [index for index, count in enumerate(open_successors) if not count]
    while ready:
        index = ready.pop()
        here = steps[index].end
        slack[index] = max(
            0.0, min((steps[s].start - here + slack[s] for s in successors[index]), default=end - here)
        )
        for wait in waits[index]:
            open_successors[wait.step] -= 1
            if not open_successors[wait.step]:
                ready.append(wait.step)
    return tuple(slack)
