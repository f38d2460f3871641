"""Small parameters are updated by one task for each bucket of them, and their new values travel as one.

What buckets are to gradients (`buckets`) and multi-tensor kernels to torch's optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..ir.graph import UPDATES, Argument, Graph, Ref, Task, Value, room
from .gradient_buckets import BUCKET_BYTES, FEW


def grouped(
    graph: Graph,
    homes: Mapping[str, str],
    pins: Mapping[str, str],
    nbytes: int = BUCKET_BYTES,
    few: int = FEW,
) -> Graph:
    """The graph with updates of small parameters taken together, up to `nbytes` bytes of parameters in each task.

    Together are neighbours, in the order in which the backward makes their gradients, of one param group, dtype,
    home (of `homes`) and pin (of `pins`, by task). `update bucket<k>` comes after the last of their gradients and
    makes `flat` values: the new parameters, and each entry of the optimizer's state. A parameter of `nbytes` or
    more is updated alone, and so are all where no more than `few` are small. Linear in tasks.
    """
    buckets = _buckets(graph, homes, pins, nbytes, few)
    if not buckets:
        return graph
    target = dict(graph.updates)
    values, updates = dict(graph.value), dict.fromkeys(graph.updates)
    flat: list[str] = []
    closing: dict[str, Task] = {}
    gone: set[str] = set()
    for bucket in buckets:
        label = _label(graph, len(closing))
        gone.update(task.name for task in bucket)
        made = []
        for position, column in enumerate(zip(*(task.outputs for task in bucket))):
            states = [graph.value[target[name]] for name in column]
            entry = f"_{states[0].path.rpartition('.')[2]}" if position else ""
            whole = _whole(f"{label}{entry}_next", states)
            for name, state in zip(column, states):
                del values[name], updates[name, state.name]
                updates[whole.name, state.name] = None
            values[whole.name] = whole
            made.append(whole.name)
        flat += made
        first, args = bucket[0], tuple(task.args[0] for task in bucket)
        closing[bucket[-1].name] = replace(
            first,
            name=f"update {label}",
            args=args,
            outputs=tuple(made),
            flops=sum(task.flops for task in bucket),
            module="",
            origin=first.origin or first.name,
        )
    return replace(
        graph,
        values=tuple(values.values()),
        tasks=tuple(
            closing.get(task.name, task)
            for task in graph.tasks
            if task.name in closing or task.name not in gone
        ),
        updates=tuple(updates),
        flat=(*graph.flat, *flat),
    )


def _buckets(
    graph: Graph, homes: Mapping[str, str], pins: Mapping[str, str], nbytes: int, few: int
) -> list[list[Task]]:
    """The updates of each bucket, two or more, in order."""
    found: list[list[Task]] = []
    filling: dict[tuple[object, ...], list[Task]] = {}
    held: dict[tuple[object, ...], int] = {}
    small = 0
    for task in graph.tasks:
        if task.target not in UPDATES or len(task.args) > 1 or task.after:
            continue
        _, number, parameter, _, coefficient, *state = _item(task)
        assert isinstance(parameter, Ref)
        value = graph.value[parameter.value]
        # In a flat value everything is in row-major order.
        if not 0 < value.bytes < nbytes or value.order or any(graph.readers[name] for name in task.outputs):
            continue
        small += 1
        place = homes.get(value.name), pins.get(task.name)
        key = (task.target, number, coefficient, len(state), value.dtype, *place)
        if key not in filling or held[key] + value.bytes > nbytes:
            filling[key], held[key] = [], 0
            found.append(filling[key])
        filling[key].append(task)
        held[key] += value.bytes
    return [bucket for bucket in found if len(bucket) > 1] if small > few else []


def _item(task: Task) -> tuple[Argument, ...]:
    (item,) = task.args
    assert isinstance(item, tuple)
    return item


def _whole(name: str, states: list[Value]) -> Value:
    """The value that holds the new values of states."""
    first, length = states[0], sum(map(room, states))
    return Value(name, (length,), first.dtype, length * (first.bytes // math.prod(first.shape)), name)


def _label(graph: Graph, number: int) -> str:
    label = f"bucket{number}"
    while f"update {label}" in graph.task or f"{label}_next" in graph.value:
        label += "_"
    return label
