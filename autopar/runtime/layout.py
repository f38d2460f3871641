"""The storage of the buffers of a program in a call: slots, which lanes share, and locals; and the caps it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..costs.roofline import workspace
from ..ir.graph import Graph
from ..ir.program import Free, Program, makes, reads, tasks_of
from ..lowering.memory_bound import fits


@dataclass(frozen=True)
class _Layout:
    """The storage of all buffers.

    slots: numbers of inputs in order, then of other buffers that exist before the call (`fed`), then of
    shared buffers that steps make. Any other buffer is a local. The last slot holds the sizes of the call.
    drops: buffers that a lane drops after the step (index of the lane, position).
    makers: indices of the lanes that make the buffers of a storage.
    """

    slots: dict[str, int]
    size: int
    fed: tuple[str, ...]
    drops: dict[tuple[int, int], list[str]]
    makers: dict[str, set[int]]


def laid_out(program: Program, graph: Graph) -> _Layout:
    """Lay out the buffers of a program of `graph`. Linear in its steps."""
    made = {name: at for at, step in program.steps() for name in makes(step)}
    freed = {step.buffer: at for at, step in program.steps() if isinstance(step, Free)}
    results = frozenset(program.results)
    # The last use of each buffer in the lane that makes it. Other lanes use shared buffers too.
    last, shared = dict(made), set(results)
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
    return _Layout(slots, size + 1, tuple(fed), drops, makers)


def keeps_caps(program: Program, graph: Graph) -> bool:
    """Return True if a program keeps every memory cap in a call in which the values of its graph have the bytes that
    `graph` tells."""
    buffers = tuple(
        each if each.kind == "resident" else replace(each, bytes=graph.value[each.value].bytes)
        for each in program.buffers
    )
    tasks = (task for _, step in program.steps() for task in tasks_of(step))
    scratch = tuple((task, workspace(graph, graph.task[task])) for task in tasks)
    everything = sum(each.bytes for each in buffers) + sum(nbytes for _, nbytes in scratch)
    # The bound takes milliseconds, as much as a short call, and each length of a sequence may be new.
    return all(everything <= cap for _, cap in program.caps) or fits(
        replace(program, buffers=buffers, workspace=scratch)
    )
