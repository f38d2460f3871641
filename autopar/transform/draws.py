"""Random numbers drawn on the device where they are read, by that device's generator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..ir.graph import DEFAULT, LOCAL, Cut, Graph, Task

_ELEMENTWISE = frozenset({
    "aten.native_dropout.default", "aten.bernoulli.default", "aten.bernoulli.p", "aten.rand_like.default",
    "aten.randn_like.default", "autopar.bernoulli.default", "autopar.normal.default",
})  # fmt: skip
"""Operators that draw a number for each element of their one tensor."""
_ATTENTION = "aten.scaled_dot_product_attention.default"


def local(graph: Graph) -> Graph:
    """The graph with each random task free to run anywhere, drawing from the generator of the device it is put on.

    Linear in tasks.
    """
    drawing = {task.name for task in graph.tasks if task.random == DEFAULT}
    tasks = (_local(graph, task, drawing) if task.name in drawing else task for task in graph.tasks)
    return replace(graph, tasks=tuple(tasks))


def _local(graph: Graph, task: Task, drawing: Collection[str]) -> Task:
    after = tuple(name for name in task.after if name not in drawing)
    return replace(task, random=LOCAL, home=False, after=after, cuts=task.cuts or _cuts(graph, task))


def _cuts(graph: Graph, task: Task) -> tuple[Cut, ...]:
    """The axes along which parts may draw for themselves."""
    shapes = [graph.value[name].shape for name in task.inputs]
    made = graph.value[task.outputs[0]].shape
    if task.target == _ATTENTION and len(shapes) <= 3 and all(s[:1] == made[:1] for s in shapes):
        # Query, key and value; a mask need not have the rows of the batch.
        axes = range(1)
    elif task.target in _ELEMENTWISE and shapes == [made]:
        axes = range(len(made))
    else:
        return ()
    ways = ((axis,) * len(shapes) for axis in axes if made[axis] > 1)
    return tuple(Cut(way, way[:1] * len(task.outputs)) for way in ways)
