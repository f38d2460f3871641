"""The order in which tasks draw from the generator of one device: lanes beside each other take turns."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import LOCAL, Graph, Task
from ..ir.program import Compute, Program
from .requirements import At, Demand


class Turns:
    """Whose turn it was last on each device, while a program is written."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def after(self, task: Task, device: str) -> tuple[str, ...]:
        """The tasks that the next one on a device must come after though no value says so."""
        if task.random != LOCAL:
            return task.after
        last, self._last[device] = self._last.get(device), task.name
        return task.after if last is None else (*task.after, last)


def turns(program: Program, graph: Graph, order: Iterable[At]) -> list[Demand]:
    """Happens-before requirements for the draws of each device to come in one order, which is the one they have in
    `order`, in which the steps of the program can run."""
    last: dict[str, At] = {}
    found: list[Demand] = []
    for at in order:
        lane = program.lanes[at[0]]
        step = lane.steps[at[1]]
        if not isinstance(step, Compute) or graph.task[step.task].random != LOCAL:
            continue
        if lane.device in last:
            found.append(Demand(last[lane.device], at, f"draws from the generator of {lane.device} next"))
        last[lane.device] = at
    return found
