"""Updates in place: the only lane of a program updates large weights last, in their own memory.

A second buffer for each new value, which is filled and then copied over the old one, moves the bytes of the weights
twice as often as `optimizer.step()` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ..ir.graph import Graph, Task
from ..ir.program import Compute, Free, Program, Step
from ..ir.program import reads as read_by
from .memory_bound import footprint


def overwriting(program: Program, graph: Graph, able: Callable[[Task], bool]) -> Program:
    """Let `able` tasks of a program's only lane overwrite the values that they update, after all its other steps, so
    that a failure before them changes nothing.

    A task takes part if its new values go nowhere but to `Program.updates`, and nothing returned shares memory with the
    old ones. The program stays as it is if it has several lanes or keeps copies, or if a memory cap would not hold:
    gradients are freed later than before. Linear in steps.
    """
    if len(program.lanes) != 1 or program.keeps:
        return program
    (lane,) = program.lanes
    buffer = program.buffer
    target = {made: f"{state}@{lane.device}" for made, state in program.updates}
    reads = {name for step in lane.steps for name in read_by(step)}
    returned = {buffer[name].storage for name in program.outputs}
    awaited = {name for task in graph.tasks for name in task.after}

    def replaces(step: Compute, made: str) -> bool:
        """Return True if a new value can take the memory of the old one."""
        old = target.get(made)
        return (
            old in step.reads
            and buffer[old].kind == "given"
            and buffer[old].storage == old
            and not {old, made} & returned
            and made not in reads
        )

    candidates = {
        step.task: step
        for step in lane.steps
        if isinstance(step, Compute)
        and step.task not in awaited
        and able(graph.task[step.task])
        and all(replaces(step, made) for made in step.writes)
    }
    readers = Counter(buffer[name].storage for step in candidates.values() for name in step.reads)
    # Another of them may read the old value too.
    last = {
        task: step
        for task, step in candidates.items()
        if all(readers[target[made]] == 1 for made in step.writes)
    }
    held = {buffer[name].storage for step in last.values() for name in step.reads}

    def later(step: Step) -> bool:
        if isinstance(step, Free):
            return buffer[step.buffer].storage in held
        return isinstance(step, Compute) and step.task in last

    steps = (*(step for step in lane.steps if not later(step)), *filter(later, lane.steps))
    memory = {made: target[made] for step in last.values() for made in step.writes}
    changed = replace(
        program,
        lanes=(replace(lane, steps=steps),),
        buffers=tuple(replace(each, storage=memory.get(each.name, each.storage)) for each in program.buffers),
    )
    fits = all(peak.cap is None or peak.bytes <= peak.cap for peak in footprint(changed))
    return changed if last and fits else program
