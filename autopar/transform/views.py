"""Views of weights in a joint graph: redundant ones folded (`folded`), the others duplicated for each reader (`own`).

A differentiated `linear` transposes its weight, its transpose and its gradient, which is free on one device. On
several, a view read by two devices would be made on one and sent to the other.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Argument, Cut, Graph, Ref, Task
from .divide import needed

T = "aten.t.default"
_LINEAR = "aten.linear.default"

NUMBER = 8
"""Limit on the bytes of a value that counts as a number."""


def folded(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Fold transposes of transposes, and multiplications by the transpose of state into `linear`.

    Return the graph, and new names of values where they differ. Bitwise equal: `linear` is the same product.
    """
    names: dict[str, str] = {}
    flipped: dict[str, str] = {}
    state = set(graph.state)
    tasks: list[Task] = []
    for task in graph.tasks:
        task = task.reading(names)
        if task.target == T:
            (made,), (given,) = task.outputs, task.inputs
            if given in flipped:
                names[made] = flipped[given]
                continue
            flipped[made] = given
        tasks.append(_linear(task, flipped, state, graph) or task)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((names.get(made, made), target) for made, target in graph.updates)
    kept = needed(tasks, [*outputs, *(made for made, _ in updates)], lambda task: task.target != T)
    return graph.with_tasks(kept, outputs=outputs, updates=updates), names


def own(graph: Graph) -> Graph:
    """Give each reader of a view of state, or of a number made from it, its own in its part of the batch: recomputing
    is cheaper than sending."""
    fixed = set(graph.state) - graph.mutated
    view: dict[str, Task] = {}
    given: set[str] = set()
    count: dict[str, int] = {}
    values = dict(graph.value)
    tasks: list[Task] = []

    def mine(name: str, reader: Task) -> str:
        """Return the reader's own view, made right before it with all that it is a view of."""
        chain = []
        while name in view:
            chain.append(view[name])
            name = view[name].inputs[0]
        for task in reversed(chain):
            (made,) = task.outputs
            first = made not in graph.results and made not in given
            given.add(made)
            number = count.get(made, 0)
            while not first and f"{made}~{number}" in values:
                number += 1
            now = made if first else f"{made}~{number}"
            count[made] = number + (not first)
            values[now] = replace(values[made], name=now)
            tasks.append(
                replace(
                    task.reading({task.inputs[0]: name}),
                    name=task.name if first else f"{task.name}~{number}",
                    outputs=(now,),
                    part=reader.part,
                    phase=reader.phase,
                    origin=task.origin or ("" if first else task.name),
                )
            )
            name = now
        return name

    for task in graph.tasks:
        if _light(task, graph) and (task.inputs[0] in fixed or task.inputs[0] in view):
            view[task.outputs[0]] = task
            if task.outputs[0] not in graph.results:
                continue
        tasks.append(task.reading({name: mine(name, task) for name in task.inputs if name in view}))
    return graph.with_tasks(tasks, values=tuple(values.values()))


def _light(task: Task, graph: Graph) -> bool:
    """Return True if a task with one input and one output has negligible cost and no effects."""
    if len(task.outputs) != 1 or len(task.inputs) != 1 or task.after or task.random or task.home:
        return False
    return task.free or (task.phase != "update" and graph.value[task.outputs[0]].bytes <= NUMBER)


def _linear(task: Task, flipped: dict[str, str], state: set[str], graph: Graph) -> Task | None:
    """Return `linear` for `addmm(bias, x, t(weight))` and `mm(x, t(weight))`."""
    bias: tuple[Argument, ...]
    if task.target == "aten.addmm.default" and not task.kwargs and len(task.args) == 3:
        bias, (x, right) = task.args[:1], task.args[1:]
        if (
            not isinstance(bias[0], Ref)
            or bias[0].value not in state
            or len(graph.value[bias[0].value].shape) != 1
        ):
            return None
    elif task.target == "aten.mm.default":
        bias, (x, right) = (), task.args[:2]
    else:
        return None
    weight = flipped.get(right.value, "") if isinstance(right, Ref) else ""
    args = (x, Ref(weight), *bias)
    if weight not in state or len(set(args)) < len(args):
        return None
    rows, columns = (0, *(None for _ in args[1:])), (None, *(0 for _ in args[1:]))
    return replace(task, target=_LINEAR, args=args, cuts=(Cut(rows, (0,)), Cut(columns, (1,))))
