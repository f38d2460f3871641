"""The phases of a training step: forward, backward, reduction of the gradients, update.

The reduction are the sums of gradients over the parts of the batch, what packs for them, and the copies that bring
the gradients there and the sums on. A sum that a part of the backward waits for, as of BatchNorm's statistics, is
backward.
"""

from __future__ import annotations

from .graph import SUM, Graph

PHASES = ("forward", "backward", "reduction", "update")
_PACKS = "aten.flatten_dense_tensors.default"


def phase_of_tasks(graph: Graph) -> dict[str, str]:
    """The phase of each task, of `PHASES`."""
    waited: set[str] = set()
    awaited: set[str] = set()
    found: dict[str, str] = {task.name: task.phase for task in graph.tasks}
    for task in reversed(graph.tasks):
        if (task.part and task.phase == "backward" and task.target != _PACKS) or not waited.isdisjoint(
            task.outputs
        ):
            waited.update(task.inputs)
        elif task.target == SUM and task.phase == "backward":
            found[task.name] = "reduction"
            awaited.update(task.inputs)
        elif task.target == _PACKS and not awaited.isdisjoint(task.outputs):
            found[task.name] = "reduction"
    return found


def phase_of_values(graph: Graph, of_task: dict[str, str]) -> dict[str, str]:
    """The phase that the copies of each value are of: gradients to and from their sum are of the reduction, what an
    update makes is of the update, and what is there before the call of the first phase that reads it."""
    rank = {name: index for index, name in enumerate(PHASES)}
    found: dict[str, str] = {}
    for task in graph.tasks:
        phase = of_task[task.name]
        if task.free and task.inputs and found.get(task.inputs[0]) == "reduction":
            phase = "reduction"
        found.update(dict.fromkeys(task.outputs, phase))
        for name in task.inputs:
            if name not in graph.producer:
                found[name] = min(found.get(name, phase), phase, key=lambda each: rank[each])
    for task in graph.tasks:
        if of_task[task.name] == "reduction":
            found.update(dict.fromkeys(task.inputs, "reduction"))
    return found
