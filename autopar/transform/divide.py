"""Division of a joint graph into the graphs of forward and backward.

The values that the backward reads from the forward are *saved*: outputs of one, inputs of the other. Each
reader of a view of a weight has its own view (`rewrites.with_own_views`), so no copy of a weight is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..ir.display_names import LOSS
from ..ir.graph import Const, Graph, Ref, Task, Value
from ..ir.open_size import extents


def closed(graph: Graph, tangents: Sequence[str], gradients: int) -> Graph:
    """Return a joint graph whose tangents are no inputs: a task makes them from the outputs of the call.

    A plan of the whole therefore cannot begin the backward before the forward has ended.
    """
    outputs = tuple(dict.fromkeys(graph.outputs[: len(graph.outputs) - gradients]))
    loss = Task(
        "loss",
        LOSS,
        (tuple(map(Ref, outputs)),),
        outputs=tuple(tangents),
        unpack=True,
        home=True,
        phase="backward",
    )
    drawn = (
        name for task in graph.tasks if task.random and task.phase == "backward" for name in task.outputs
    )
    later = depending(graph, (*tangents, *drawn))
    ahead = [task for task in graph.tasks if later.isdisjoint(task.outputs) and later.isdisjoint(task.inputs)]
    known = {task.name for task in ahead}
    behind = [task for task in graph.tasks if task.name not in known]
    return replace(
        graph,
        values=tuple(
            replace(value, kind="made", path="") if value.name in tangents else value
            for value in graph.values
        ),
        tasks=(*ahead, loss, *behind),
        inputs=tuple(name for name in graph.inputs if name not in tangents),
    ).check()


def divide(graph: Graph, gradients: int) -> tuple[Graph, Graph]:
    """Divide a `closed` joint graph, whose last `gradients` outputs are the gradients, into forward and
    backward.

    The outputs of the forward are those of the call, then the saved values, which may include inputs of the call. The
    inputs of the backward are the saved values, then the tangents; its outputs are the gradients. A task belongs to the
    forward if an output of the call, an update or an effect needs it. Linear in tasks.
    """
    tangents = next(task.outputs for task in graph.tasks if task.target == LOSS)
    count = len(graph.outputs) - gradients
    wanted = [*graph.outputs[:count], *(computed for computed, _ in graph.updates)]
    first = needed(graph.tasks, wanted, _effective)
    ahead = {task.name for task in first}
    behind = [task for task in graph.tasks if task.name not in ahead and task.target != LOSS]
    there = {task.name for task in behind}
    # The forward and the loss have ended by then, so waits for them are dropped.
    tasks = tuple(replace(task, after=tuple(n for n in task.after if n in there)) for task in behind)
    computed = {name for task in tasks for name in task.outputs}
    state = set(graph.state) - graph.mutated
    read = dict.fromkeys((*(name for task in tasks for name in task.inputs), *graph.outputs[count:]))
    saved = [name for name in read if name not in computed and name not in state and name not in tangents]
    forward = replace(
        graph,
        values=_values(graph, graph.inputs, graph.state, first),
        tasks=tuple(first),
        outputs=(*graph.outputs[:count], *saved),
    )
    used = _with_wholes(graph, read)
    state_read = tuple(name for name in graph.state if name in used and name in state)
    backward = replace(
        graph,
        name=f"{graph.name} backward",
        values=_values(graph, [*saved, *tangents], state_read, tasks),
        tasks=tasks,
        inputs=(*saved, *tangents),
        state=state_read,
        outputs=graph.outputs[count:],
        updates=(),
        changing=(),
        carried=(),
        streamed=tuple(name for name in graph.streamed if name in state_read),
    )
    return forward.check(), backward.check()


def _effective(task: Task) -> bool:
    """Return True for a task of the forward that draws random numbers, or asserts something of values."""
    return task.phase == "forward" and bool(task.random or task.target.startswith("aten._assert_async."))


def alive(backward: Graph, tangents: Sequence[str], live: Collection[str]) -> Graph:
    """Return the backward graph for the `live` tangents only.

    A gradient that no live tangent reaches is no output: eager has None there, not zeros. A backward is
    linear in its tangents, so zeros need not be computed: a task whose tangents are all dead is dropped, and
    so is a dead summand. In other tasks, a dead input becomes zeros of its shape.
    """
    if all(name in live for name in tangents):
        return backward
    dead = {name for name in tangents if name not in live}
    depends = {*tangents}
    tasks: list[Task] = []
    values = dict(backward.value)
    names: dict[str, str] = {}
    for task in backward.tasks:
        linear = [name for name in task.inputs if name in depends]
        if linear:
            depends.update(task.outputs)
        gone = [name for name in linear if name in dead]
        if gone and len(gone) == len(linear):
            dead.update(task.outputs)
            continue
        left = [name for name in task.inputs if name not in dead]
        if gone and _adds(task, left, values):
            names[task.outputs[0]] = names.get(left[0], left[0])
            continue
        for name in gone:
            zeros = f"{name}#zeros"
            if zeros not in values:
                values[zeros] = replace(
                    values[name], name=zeros, storage=zeros, kind="made", path="", label="zeros"
                )
                tasks.append(_zeros(task, zeros, values[zeros]))
        tasks.append(task.reading({**names, **{n: f"{n}#zeros" for n in gone}}))
    outputs = tuple(names.get(name, name) for name in backward.outputs if name not in dead)
    return _pruned(backward, tasks, values, outputs, dead)


def _adds(task: Task, left: Sequence[str], values: Mapping[str, Value]) -> bool:
    """Return True if an addition returns its only remaining summand unchanged."""
    if task.target != "aten.add.Tensor" or task.kwargs or len(left) != 1:
        return False
    summand, output = values[left[0]], values[task.outputs[0]]
    return (summand.shape, summand.dtype) == (output.shape, output.dtype)


def reached(backward: Graph, tangents: Sequence[str], live: Collection[str]) -> tuple[bool, ...]:
    """Return for each gradient whether a `live` tangent reaches it; True for one that depends on no tangent."""
    dependent, made_up = depending(backward, live), constants(backward, tangents)
    return tuple(name in dependent or name in made_up for name in backward.outputs)


def constants(backward: Graph, tangents: Sequence[str]) -> set[str]:
    """Return gradients that depend on no tangent: a custom backward creates them (for an auxiliary loss,
    say)."""
    return {*backward.outputs} - depending(backward, tangents)


def depending(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return the names of these values and of all values that depend on them."""
    dependent = {*names}
    for task in graph.tasks:
        if not dependent.isdisjoint(task.inputs):
            dependent.update(task.outputs)
    return dependent


def needed(
    tasks: Sequence[Task], values: Iterable[str], keep: Callable[[Task], bool] = lambda task: False
) -> list[Task]:
    """Eliminate dead code: return tasks that make these values, those to `keep`, and their dependencies."""
    wanted = {*values}
    orders: set[str] = set()
    alive: list[Task] = []
    for task in reversed(tasks):
        if keep(task) or task.name in orders or not wanted.isdisjoint(task.outputs):
            alive.append(task)
            wanted.update(task.inputs)
            orders.update(task.after)
    return alive[::-1]


def _values(
    graph: Graph, outside: Sequence[str], state: Sequence[str], tasks: Sequence[Task]
) -> tuple[Value, ...]:
    """Return a half's values; given ones have their own memory unless they share it with another given
    one."""
    owner: dict[str, str] = {}
    values: dict[str, Value] = {}
    for name in (*outside, *state):
        value = graph.value[name]
        root = owner.setdefault(value.storage, name)
        kind: Literal["state", "input"] = "state" if name in state else "input"
        values[name] = replace(value, storage=root, kind=kind, path=value.path or name)
    for task in tasks:
        for name in task.outputs:
            value = graph.value[name]
            values[name] = replace(value, storage=_root(graph, value, owner, task, values))
    return tuple(values.values())


def _root(graph: Graph, value: Value, owner: dict[str, str], task: Task, values: dict[str, Value]) -> str:
    """Return the storage of a made value in its half."""
    if value.storage == value.name:
        return value.name
    if value.storage in values:
        return value.storage
    for name in task.inputs:
        if name in graph.value and graph.value[name].storage == value.storage:
            return values[name].storage
    return owner.get(value.storage, value.name)


def _with_wholes(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return these values, and the states that contain them."""
    wholes = {*names}
    return wholes | {part.of for name in wholes if name in graph.value and (part := graph.value[name].slice)}


def _zeros(task: Task, name: str, value: Value) -> Task:
    options = (("dtype", Const(f"torch.{value.dtype}")), ("device", Const("device")))
    return Task(
        name, "aten.zeros.default", (extents(value),), options, (name,), phase="backward", module=task.module,
        source=task.source,
    )  # fmt: skip


def _pruned(
    backward: Graph, tasks: Sequence[Task], values: dict[str, Value], outputs: tuple[str, ...], dead: set[str]
) -> Graph:
    """Return the graph with only the tasks that its outputs need, with the inputs and state of these."""
    there = {task.name for task in needed([replace(task, after=()) for task in tasks], outputs)}
    alive = [
        replace(task, after=tuple(name for name in task.after if name in there))
        for task in tasks
        if task.name in there
    ]
    wanted = _with_wholes(backward, (*outputs, *(name for task in alive for name in task.inputs)))
    state = tuple(name for name in backward.state if name in wanted)
    return backward.with_tasks(
        alive,
        values=tuple(values.values()),
        inputs=tuple(name for name in backward.inputs if name in wanted and name not in dead),
        state=state,
        outputs=outputs,
        streamed=tuple(name for name in backward.streamed if name in state),
    )
