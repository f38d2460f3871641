"""Parts of weights as states of their own, so that a device holds what it reads and no more: `with_slices`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..ir.graph import PART, Graph, Task
from ..ir.slices import Slice


def with_slices(graph: Graph) -> Graph:
    """The graph in which each part that is taken of a state is a state, kept, streamed or changing as the whole is.

    The whole stays among the states, read or not: it is what the user holds. Parts of what a call updates are taken
    of the new value as before.
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
