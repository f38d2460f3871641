"""Views of weights in a joint graph: fewer of them, and each where it is read: `folded`, `own`.

A differentiated `linear` transposes its weight, its transpose and its gradient, which costs nothing on one
device. Among several, a view of a weight that two devices read would be made on one and sent to the other.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Argument, Cut, Graph, Ref, Task, replace_refs

T = "aten.t.default"
_LINEAR = "aten.linear.default"

NUMBER = 8
"""Bytes up to which a value is a number."""


def folded(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph without transposes of transposes, and with `linear` where it multiplies by the transpose of state.

    Also the names that values have now, where they differ. Bit-equal: `linear` is the same product.
    """
    names: dict[str, str] = {}
    flipped: dict[str, str] = {}
    state = set(graph.state)
    tasks: list[Task] = []
    for task in graph.tasks:
        task = _renamed(task, names)
        if task.target == T:
            (made,), (given,) = task.outputs, task.inputs
            if given in flipped:
                names[made] = flipped[given]
                continue
            flipped[made] = given
        tasks.append(_linear(task, flipped, state, graph) or task)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((names.get(made, made), target) for made, target in graph.updates)
    wanted = {*outputs, *(made for made, _ in updates)}
    kept: list[Task] = []
    for task in reversed(tasks):
        if task.target != T or not wanted.isdisjoint(task.outputs):
            kept.append(task)
            wanted.update(task.inputs)
    kept.reverse()
    return _with(graph, kept, outputs, updates), names


def own(graph: Graph) -> Graph:
    """The graph in which whoever reads a view of state, or a number made of it, has one for itself, of its own part of
    the batch: to make it again costs less than to send it."""
    fixed = set(graph.state) - graph.mutated
    view: dict[str, Task] = {}
    given: set[str] = set()
    count: dict[str, int] = {}
    values = dict(graph.value)
    kept = {*graph.outputs, *(made for made, _ in graph.updates)}
    tasks: list[Task] = []

    def mine(name: str, reader: Task) -> str:
        """The reader's own view, made right before it with all it is a view of."""
        chain = []
        while name in view:
            chain.append(view[name])
            name = view[name].inputs[0]
        for task in reversed(chain):
            (made,) = task.outputs
            first = made not in kept and made not in given
            given.add(made)
            number = count.get(made, 0)
            while not first and f"{made}~{number}" in values:
                number += 1
            now = made if first else f"{made}~{number}"
            count[made] = number + (not first)
            values[now] = replace(values[made], name=now)
            tasks.append(
                replace(
                    _renamed(task, {task.inputs[0]: name}),
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
            if task.outputs[0] not in kept:
                continue
        renamed = {name: mine(name, task) for name in task.inputs if name in view}
        tasks.append(_renamed(task, renamed))
    return _with(replace(graph, values=tuple(values.values())), tasks, graph.outputs, graph.updates)


def _light(task: Task, graph: Graph) -> bool:
    """Whether a task of one input and one output does next to nothing, and nothing besides."""
    if (
        len(task.outputs) != 1
        or len(task.inputs) != 1
        or task.after
        or task.random
        or task.writes
        or task.home
    ):
        return False
    return task.free or (task.phase != "update" and graph.value[task.outputs[0]].bytes <= NUMBER)


def _renamed(task: Task, names: dict[str, str]) -> Task:
    if names.keys().isdisjoint(task.inputs):
        return task
    args = tuple(replace_refs(argument, names) for argument in task.args)
    kwargs = tuple((key, replace_refs(argument, names)) for key, argument in task.kwargs)
    made = replace(task, args=args, kwargs=kwargs)
    # Cuts have an axis for each distinct value.
    return made if len(made.inputs) == len(task.inputs) else replace(made, cuts=())


def _linear(task: Task, flipped: dict[str, str], state: set[str], graph: Graph) -> Task | None:
    """`linear` for `addmm(bias, x, t(weight))` and `mm(x, t(weight))`."""
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


def _with(
    graph: Graph, tasks: list[Task], outputs: tuple[str, ...], updates: tuple[tuple[str, str], ...]
) -> Graph:
    made = {name for task in tasks for name in task.outputs}
    there = {*graph.inputs, *graph.state}
    roots = {value.storage for value in graph.values if value.name in made} - made - there
    values = []
    for value in graph.values:
        if value.name in made or value.name in there:
            values.append(replace(value, storage=value.name) if value.storage in roots else value)
    return replace(graph, values=tuple(values), tasks=tuple(tasks), outputs=outputs, updates=updates).check()
