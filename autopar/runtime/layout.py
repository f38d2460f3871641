"""The storage of the buffers of a program in a call: slots, which lanes share, and locals; and the steps whose results
are the same in every call of the same sizes, such as positions and masks, which are kept from call to call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..ir.graph import Graph, Task
from ..ir.program import Compute, Free, Program, Step, makes, reads

Part: TypeAlias = Literal["whole", "constant", "varying"]
"""Steps of a lane: all, those with constant results, the others."""


@dataclass(frozen=True)
class _Layout:
    """The storage of all buffers.

    slots: numbers of inputs in order, then of other buffers that exist before the call (`fed`), then of
    shared buffers that steps make. Any other buffer is a local. The last slot holds the sizes of the call.
    drops: buffers that a lane drops after the step (index of the lane, position).
    makers: indices of the lanes that make the buffers of a storage.
    constant: names of the tasks that read nothing but results of each other.
    kept: the buffers of these that other steps read.
    """

    slots: dict[str, int]
    size: int
    fed: tuple[str, ...]
    drops: dict[tuple[int, int], list[str]]
    makers: dict[str, set[int]]
    constant: frozenset[str]
    kept: tuple[str, ...]

    def holds(self, step: Step, part: Part) -> bool:
        """Return True if a step belongs to a part of its lane."""
        constant = isinstance(step, Compute) and step.task in self.constant
        return part == "whole" or constant == (part == "constant")


def laid_out(program: Program, graph: Graph) -> _Layout:
    """Lay out the buffers of a program of `graph`. Linear in its steps."""
    constant, kept = _constants(program, graph)
    made = {name: at for at, step in program.steps() for name in makes(step)}
    freed = {step.buffer: at for at, step in program.steps() if isinstance(step, Free)}
    results = frozenset(program.results)
    # The last use of each buffer in the lane that makes it. Other lanes use shared buffers too.
    last, shared = dict(made), {*results, *kept}
    for at, step in program.steps():
        for name in reads(step):
            if name in made and made[name][0] == at[0]:
                last[name] = at
            else:
                shared.add(name)
    drops: dict[tuple[int, int], list[str]] = {}
    makers: dict[str, set[int]] = {}
    inputs = {name: position for position, name in enumerate(graph.inputs)}
    slots: dict[str, int] = {}
    fed: list[str] = []
    for buffer in program.buffers:
        name = buffer.name
        if name in made:
            makers.setdefault(buffer.storage, set()).add(made[name][0])
        if buffer.kind == "result" or name in results:
            shared.add(name)
        elif name in made:
            # A local that no step frees is dropped after its last reader.
            end = freed.get(name) or (None if name in shared else last[name])
            if end:
                drops.setdefault(end, []).append(name)
        if buffer.kind == "given" and buffer.value in inputs:
            slots[name] = inputs[buffer.value]
        elif buffer.kind in ("given", "resident"):
            slots[name] = len(inputs) + len(fed)
            fed.append(name)
    size = len(inputs) + len(fed)
    for buffer in program.buffers:
        if buffer.name not in slots and buffer.name in shared:
            slots[buffer.name] = size
            size += 1
    return _Layout(slots, size + 1, tuple(fed), drops, makers, constant, kept)


def _constants(program: Program, graph: Graph) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the constant tasks of a program of one lane that only computes, and the buffers of these that other steps
    read; none of any other program. Linear in tasks.

    The caller may write to a result, so nothing that shares memory with one is a constant.
    """
    lanes = [lane for lane in program.lanes if lane.steps]
    if len(lanes) != 1 or not all(isinstance(step, Compute | Free) for step in lanes[0].steps):
        return frozenset(), ()
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
    return frozenset(tasks), tuple(kept)


def _repeats(task: Task) -> bool:
    """Return True if a call of a task with equal inputs gives equal results, does nothing else, and is cheap enough
    not to be one of the products that precision settings change."""
    return bool(task.outputs) and task.target.startswith("aten.") and not task.random and not task.flops
