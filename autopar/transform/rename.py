"""Other names for the values and tasks of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.graph import Graph, Task


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for some values, and for tasks named after the one value they make.

    Names that are taken already stay as they are, so that the result has as many values as the graph.
    """
    taken = {*graph.value, *graph.task}
    wanted = {old: new for old, new in names.items() if old in graph.value and new not in taken}
    mine = {new: old for old, new in reversed(wanted.items())}
    now = {old: new for old, new in wanted.items() if mine[new] == old}

    def of(name: str) -> str:
        return now.get(name, name)

    tasks: list[Task] = []
    called: dict[str, str] = {}
    for task in graph.tasks:
        if task.outputs == (task.name,):
            called[task.name] = of(task.name)
        if now.keys().isdisjoint((*task.inputs, *task.outputs)) and not any(
            called.get(name, name) != name for name in task.after
        ):
            tasks.append(task)
            continue
        tasks.append(
            replace(
                task.reading(now),
                name=called.get(task.name, task.name),
                outputs=tuple(map(of, task.outputs)),
                after=tuple(called.get(name, name) for name in task.after),
            )
        )
    return replace(
        graph,
        values=tuple(
            replace(v, name=of(v.name), storage=of(v.storage)) if v.name in now or v.storage in now else v
            for v in graph.values
        ),
        tasks=tuple(tasks),
        inputs=tuple(map(of, graph.inputs)),
        state=tuple(map(of, graph.state)),
        outputs=tuple(map(of, graph.outputs)),
        updates=tuple((of(made), of(target)) for made, target in graph.updates),
        changing=tuple(map(of, graph.changing)),
        carried=tuple(map(of, graph.carried)),
        streamed=tuple(map(of, graph.streamed)),
    ).check()
