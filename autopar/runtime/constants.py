"""The steps of a program whose results are the same in every call of the same sizes, such as positions and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from ..ir.graph import Graph, Task
from ..ir.program import Compute, Free, Program, Step, reads
from ..ops import resolve

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
    found: set[str] = set()
    made: set[str] = set()
    for task in graph.tasks:
        values = [graph.value[name] for name in task.outputs]
        own = all(value.storage not in lent and value.dtype not in ("", "object") for value in values)
        if values and own and made.issuperset(task.inputs) and _repeats(task):
            found.add(task.name)
            made.update(task.outputs)
    return Constants(frozenset(found), _read(lanes[0].steps, program, found, made))


def _read(steps: Sequence[Step], program: Program, tasks: set[str], values: set[str]) -> tuple[str, ...]:
    """Return the buffers of `values` that steps of other tasks read."""
    others = [step for step in steps if isinstance(step, Compute) and step.task not in tasks]
    names = dict.fromkeys(name for step in others for name in reads(step))
    return tuple(name for name in names if program.buffer[name].value in values)


def _repeats(task: Task) -> bool:
    """Return True if a call of a task with equal inputs gives equal results, and is cheap enough not to be one of the
    products that precision settings change."""
    if not task.target.startswith("aten.") or "empty" in task.target or task.random or task.flops:
        return False
    operator = resolve.target(task.target)
    return torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ())
