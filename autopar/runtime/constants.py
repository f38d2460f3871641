"""The steps of a program whose results are the same in every call of the same sizes, such as positions and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..ir.graph import Graph, Task
from ..ir.program import Compute, Free, Program, Step

Part: TypeAlias = Literal["whole", "constant", "varying"]
"""Steps of a lane: all, those with constant results, the others."""


@dataclass(frozen=True)
class Constants:
    """tasks: names of tasks that read nothing but results of each other. kept: the buffers of these that other steps
    read."""

    tasks: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()

    def makes(self, step: Step) -> bool:
        """Return True if a step is one of these tasks."""
        return isinstance(step, Compute) and step.task in self.tasks


def constants(program: Program, graph: Graph) -> Constants:
    """Return the constants of a program of one lane that only computes; none of any other. Linear in tasks.

    The caller may write to a result, so nothing that shares memory with one is a constant.
    """
    lanes = [lane for lane in program.lanes if lane.steps]
    if len(lanes) != 1 or not all(isinstance(step, Compute | Free) for step in lanes[0].steps):
        return Constants()
    lent = {graph.value[name].storage for name in graph.results}
    tasks: set[str] = set()
    made: set[str] = set()
    kept: dict[str, None] = {}
    for task in graph.tasks:
        own = lent.isdisjoint(graph.value[name].storage for name in task.outputs)
        if own and made.issuperset(task.inputs) and _repeats(task):
            tasks.add(task.name)
            made.update(task.outputs)
        else:
            kept |= dict.fromkeys(f"{name}@{lanes[0].device}" for name in task.inputs if name in made)
    return Constants(frozenset(tasks), tuple(kept))


def _repeats(task: Task) -> bool:
    """Return True if a call of a task with equal inputs gives equal results, does nothing else, and is cheap enough
    not to be one of the products that precision settings change."""
    return bool(task.outputs) and task.target.startswith("aten.") and not task.random and not task.flops
