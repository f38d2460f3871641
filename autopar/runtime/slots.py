"""Storage of each buffer during a call: a local variable of one lane's code, or a slot shared by lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.graph import Graph
from ..ir.program import Free, Program, Record, Wait, makes, reads


@dataclass(frozen=True)
class Layout:
    """The storage of all buffers.

    slots: numbers of shared buffers: all inputs in order, then other buffers that exist before the call (`fed`), then
    shared made ones; a buffer without a slot is a local.
    drops: buffers that a lane drops after the step (lane, index).
    makers: lanes that make the buffers of a storage.
    """

    slots: dict[str, int]
    size: int
    fed: tuple[str, ...]
    drops: dict[tuple[str, int], tuple[str, ...]]
    makers: dict[str, set[str]]


def layout(program: Program, graph: Graph) -> Layout:
    """Lay out the buffers of a program of `graph`. Linear in its steps."""
    maker, freed, last, shared = _uses(program)
    results = frozenset(program.results)
    drops: dict[tuple[str, int], list[str]] = {}
    makers: dict[str, set[str]] = {}
    for buffer in program.buffers:
        name = buffer.name
        if name in maker:
            makers.setdefault(buffer.storage, set()).add(maker[name])
        if buffer.kind == "result" or name in results:
            shared.add(name)
        elif name in maker:
            # What nobody frees, a local outlives its last reader for nothing.
            end = freed.get(name) or (None if name in shared else last[name])
            if end:
                drops.setdefault(end, []).append(name)

    inputs = {name: position for position, name in enumerate(graph.inputs)}
    slots: dict[str, int] = {}
    fed: list[str] = []
    for buffer in program.buffers:
        if buffer.kind == "given" and buffer.value in inputs:
            slots[buffer.name] = inputs[buffer.value]
        elif buffer.kind in ("given", "resident"):
            slots[buffer.name] = len(inputs) + len(fed)
            fed.append(buffer.name)
    size = len(inputs) + len(fed)
    for buffer in program.buffers:
        if buffer.name not in slots and buffer.name in shared:
            slots[buffer.name] = size
            size += 1
    dropped = {where: tuple(names) for where, names in drops.items()}
    return Layout(slots, size, tuple(fed), dropped, makers)


def _uses(
    program: Program,
) -> tuple[dict[str, str], dict[str, tuple[str, int]], dict[str, tuple[str, int]], set[str]]:
    """Return the lane that makes each buffer, the step that frees it, its last use in that lane, and the shared
    buffers."""
    maker: dict[str, str] = {}
    freed: dict[str, tuple[str, int]] = {}
    last: dict[str, tuple[str, int]] = {}
    shared: set[str] = {*program.results}
    for lane in program.lanes:
        for index, step in enumerate(lane.steps):
            if isinstance(step, Free):
                freed[step.buffer] = (lane.name, index)
            for name in makes(step):
                maker[name] = lane.name
                last[name] = (lane.name, index)
    for lane in program.lanes:
        for index, step in enumerate(lane.steps):
            for name in reads(step):
                if maker.get(name) != lane.name:
                    shared.add(name)
                else:
                    last[name] = (lane.name, index)
    return maker, freed, last, shared


def events(program: Program, kind: type[Record] | type[Wait]) -> Iterator[tuple[str, str]]:
    """Yield (event, lane) of each step of `kind`."""
    for lane in program.lanes:
        for step in lane.steps:
            if isinstance(step, Record | Wait) and isinstance(step, kind):
                yield step.event, lane.name
