"""Equivalent rewrites of a graph: local random draws and renamed values. In a joint graph,
redundant views of weights are folded (`folded`) and the others repeated for each reader (`with_own_views`).

A differentiated `linear` transposes its weight, the transpose and the gradient. This is free on one device,
but a view read by two devices would be made on one and sent to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.costed import TAPED
from ..ir.graph import DEFAULT, LOCAL, Argument, Cut, Graph, Ref, Task
from .divide import needed

_ELEMENTWISE = frozenset({
    "aten.native_dropout.default", "aten.bernoulli.default", "aten.bernoulli.p", "aten.rand_like.default",
    "aten.randn_like.default", "autopar.bernoulli.default", "autopar.normal.default",
})  # fmt: skip
"""Operators that draw a number for each element of their only tensor."""
_ATTENTION = ("aten.scaled_dot_product_attention.default", TAPED)


def local(graph: Graph) -> Graph:
    """Let each random task run anywhere and draw from the generator of its device. Linear in tasks."""
    drawing = {task.name for task in graph.tasks if task.random == DEFAULT}

    def moved(task: Task) -> Task:
        after = tuple(name for name in task.after if name not in drawing)
        return replace(task, random=LOCAL, home=False, after=after, cuts=task.cuts or _cuts(graph, task))

    return replace(graph, tasks=tuple(moved(task) if task.name in drawing else task for task in graph.tasks))


def _cuts(graph: Graph, task: Task) -> tuple[Cut, ...]:
    """Return the axes along which parts may draw independently."""
    shapes = [graph.value[name].shape for name in task.inputs]
    shape = graph.value[task.outputs[0]].shape
    if task.target in _ATTENTION and all((len(s), s[:1]) == (len(shape), shape[:1]) for s in shapes):
        # A mask need not have the rows of the batch, and what has only two axes has no batch.
        masked = any(isinstance(argument, Ref) for argument in (*task.args[3:], *dict(task.kwargs).values()))
        axes = range(0 if masked or len(shape) < 3 else 1)
    elif task.target in _ELEMENTWISE and shapes == [shape]:
        axes = range(len(shape))
    else:
        return ()
    ways = ((axis,) * len(shapes) for axis in axes if shape[axis] > 1)
    return tuple(Cut(way, way[:1] * len(task.outputs)) for way in ways)


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Rename values, and tasks that are named after their only output.

    A value whose new name is taken keeps its old one.
    """
    used = {*graph.value, *graph.task}
    changes: dict[str, str] = {}
    for old, new in names.items():
        if old in graph.value and new not in used:
            changes[old] = new
            used.add(new)
    alone = {task.name for task in graph.tasks if task.outputs == (task.name,)}
    called = {old: new for old, new in changes.items() if old in alone}

    def of(name: str) -> str:
        return changes.get(name, name)

    def changed(task: Task) -> Task:
        if changes.keys().isdisjoint((*task.inputs, *task.outputs, *task.after)):
            return task
        return replace(
            task.reading(changes),
            name=called.get(task.name, task.name),
            outputs=tuple(map(of, task.outputs)),
            after=tuple(called.get(name, name) for name in task.after),
        )

    return replace(
        graph,
        values=tuple(
            replace(v, name=of(v.name), storage=of(v.storage))
            if v.name in changes or v.storage in changes
            else v
            for v in graph.values
        ),
        tasks=tuple(map(changed, graph.tasks)),
        inputs=tuple(map(of, graph.inputs)),
        state=tuple(map(of, graph.state)),
        outputs=tuple(map(of, graph.outputs)),
        updates=tuple((of(new), of(target)) for new, target in graph.updates),
        changing=tuple(map(of, graph.changing)),
        carried=tuple(map(of, graph.carried)),
        streamed=tuple(map(of, graph.streamed)),
    ).check()


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
            (new,), (transposed,) = task.outputs, task.inputs
            if transposed in flipped:
                names[new] = flipped[transposed]
                continue
            flipped[new] = transposed
        tasks.append(_linear(task, flipped, state, graph) or task)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((names.get(new, new), target) for new, target in graph.updates)
    alive = needed(tasks, [*outputs, *(new for new, _ in updates)], lambda task: task.target != T)
    return graph.with_tasks(alive, outputs=outputs, updates=updates), names


def with_own_views(graph: Graph) -> Graph:
    """Repeat each view of state, and each number made from state, for every reader, in the reader's part of
    the batch: recomputing is cheaper than sending."""
    fixed = set(graph.state) - graph.mutated
    view: dict[str, Task] = {}
    first_taken: set[str] = set()
    count: dict[str, int] = {}
    values = dict(graph.value)
    tasks: list[Task] = []

    def mine(name: str, reader: Task) -> str:
        """Return the reader's own view; it and all views below it are made right before the reader."""
        chain = []
        while name in view:
            chain.append(view[name])
            name = view[name].inputs[0]
        for task in reversed(chain):
            (output,) = task.outputs
            first = output not in graph.results and output not in first_taken
            first_taken.add(output)
            number = count.get(output, 0)
            while not first and f"{output}~{number}" in values:
                number += 1
            now = output if first else f"{output}~{number}"
            count[output] = number + (not first)
            values[now] = replace(values[output], name=now)
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
    """Return True if a task has one input, one output, negligible cost and no effects."""
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
