"""Slices of weights as states of their own, so that a device only holds what it reads: `with_slices`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..ir.graph import PART, Graph, Task
from ..ir.slices import Slice


def with_slices(graph: Graph) -> Graph:
    """Return the graph in which each slice taken of a state is a state: resident, streamed or changing like the whole.

    The whole stays a state, read or not, since the user holds it. Slices of updated state are taken of the new value,
    as before.
    """
    values = dict(graph.value)
    parts: dict[str, list[str]] = {}
    tasks: list[Task] = []
    for task in graph.tasks:
        of = task.inputs[0] if task.target == PART else ""
        if of not in graph.state or of in graph.mutated:
            tasks.append(task)
            continue
        (made,), (_, axis, start, stop) = task.outputs, task.args
        assert isinstance(axis, int) and isinstance(start, int) and isinstance(stop, int)
        whole, part = values[of], Slice(of, axis, start, stop - start)
        values[made] = replace(values[made], kind="state", path=whole.path, storage=whole.storage, slice=part)
        parts.setdefault(of, []).append(made)

    def alike(names: Iterable[str]) -> tuple[str, ...]:
        return (*names, *(part for name in names for part in parts.get(name, ())))

    return graph.with_tasks(
        tasks,
        values=tuple(values.values()),
        state=alike(graph.state),
        changing=alike(graph.changing),
        streamed=alike(graph.streamed),
    )
