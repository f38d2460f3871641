"""Buckets of small tensors: gradients of a split graph are summed together, parameters updated by one task.

Gradients are grouped with their neighbours in the order of the backward, as in DistributedDataParallel (Li et
al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020). A bucket of
parameters resembles a multi-tensor kernel of torch's optimizers; new values are transferred together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import networkx

from ..ir.display_names import BUCKET, LOSS
from ..ir.graph import SUM, UPDATES, Argument, Graph, Ref, Task, Value, room

_FLAT, _PIECES = "aten.flatten_dense_tensors.default", "aten.split_with_sizes.default"
_SHAPED = "aten.reshape.default"
_T = TypeVar("_T")

BUCKET_BYTES = 1 << 20
"""Bytes that a link transfers during the latency of a copy: 40 µs, hand-offs included, at 25 GB/s. Smaller
buckets would mostly wait for latency; larger ones would begin later without costing less."""
ALONE_BYTES = 128 << 10
"""The same on a single CPU, where nothing is transferred and joined tensors are copied for nothing else than fewer
calls: a training step of ResNet-18 took 1.01 of a plain loop's time with 16 KB to 128 KB, 1.04 with 1 MB."""
FEW = 8
"""Limit on sums up to which none are grouped: they start in the backward and rarely wait for each other."""


def bucketed(graph: Graph, nbytes: int = BUCKET_BYTES) -> Graph:
    """Group small sums of gradients, up to `nbytes` bytes in each group.

    A sum is grouped if it belongs to the backward, has fewer than `nbytes` bytes, adds summands of the parts,
    and only results depend on it: no part waits for it, so grouping delays no part. Consecutive sums of one
    dtype and the same tangents form bucket k. For part i, `bucket<k>#cat<i>` copies the summands into one
    flat value as soon as the last one is made. `bucket<k>#sum` adds the flat values; the sums are views of it
    under their old names. Up to `FEW` such sums stay as they are. Sums that parts wait for (a BatchNorm's)
    share a bucket if one task of each part makes all summands. Tangents are not mixed: a gradient that no
    live tangent reaches, which eager lacks, would become zeros. The order of additions stays, so values are
    bitwise equal. Linear in tasks except for sorting.
    """
    buckets = _gradients(graph, nbytes)
    if not buckets:
        return graph
    sums = {
        task.outputs[0]: f"bucket{number}#sum" for number, bucket in enumerate(buckets) for task in bucket
    }
    values = [replace(value, storage=sums.get(value.storage, value.storage)) for value in graph.values]
    inside = {task.name for bucket in buckets for task in bucket}
    closing = {bucket[-1].name: number for number, bucket in enumerate(buckets)}
    tasks: list[Task] = []
    for task in graph.tasks:
        if task.name in closing:
            number = closing[task.name]
            flats, steps = _summed(graph, buckets[number], number)
            values += flats
            tasks += steps
        elif task.name not in inside:
            tasks.append(task)
    # Readers of a sum move behind the bucket of the sum.
    place = {task.name: index for index, task in enumerate(tasks)}
    moved = replace(graph, values=tuple(values), tasks=tuple(tasks))
    order = networkx.lexicographical_topological_sort(moved.networkx(), key=place.__getitem__)
    return replace(moved, tasks=tuple(moved.task[name] for name in order))


def _gradients(graph: Graph, nbytes: int) -> list[list[Task]]:
    """Return the sums of each bucket, two or more, in order."""
    final, updated, reaching = _final(graph), _updated(graph), _reaching(graph)
    small: list[tuple[Hashable, int, Task]] = []
    twins: list[list[Task]] = []
    before: tuple[str, ...] = ()
    for task in graph.tasks:
        parts, makers = _makers(graph, task, nbytes)
        if parts and task.name in final:
            value = graph.value[task.outputs[0]]
            # Gradients of one bucket share an update, so no update waits for another's bucket.
            key = value.dtype, updated.get(value.name, ""), reaching.get(value.name, 0), *parts
            small.append((key, value.bytes, task))
        elif parts:
            if makers != before:
                twins.append([])
            twins[-1].append(task)
        before = () if task.name in final else makers
    buckets = filled(small, nbytes) if len(small) > FEW else []
    return [bucket for bucket in (*buckets, *twins) if len(bucket) > 1]


def filled(items: Iterable[tuple[Hashable, int, _T]], nbytes: int) -> list[list[_T]]:
    """Group items (key, bytes) into buckets of one key and up to `nbytes` bytes, in order."""
    buckets: list[list[_T]] = []
    filling: dict[Hashable, list[_T]] = {}
    held: dict[Hashable, int] = {}
    for key, size, item in items:
        if key not in filling or held[key] + size > nbytes:
            filling[key], held[key] = [], 0
            buckets.append(filling[key])
        filling[key].append(item)
        held[key] += size
    return buckets


def _makers(graph: Graph, task: Task, nbytes: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts whose summands a small sum of the backward adds; and the dtype with the tasks that
    make them."""
    if task.target != SUM or task.phase != "backward" or task.after:
        return (), ()
    value, summands = graph.value[task.outputs[0]], _summands(task)
    makers = [graph.producer.get(name, "") for name in summands]
    parts = tuple(graph.task[maker].part if maker else "" for maker in makers)
    # A flat value holds its elements in row-major order.
    if not 0 < value.bytes < nbytes or value.storage != value.name or value.order:
        return (), ()
    if len(set(summands)) < len(makers) or not all(parts):
        return (), ()
    return parts, (value.dtype, *makers)


def _reaching(graph: Graph) -> dict[str, int]:
    """Return the tangents that each value depends on, as bits; empty without a user's own loss."""
    reaching: dict[str, int] = {}
    for task in graph.tasks:
        if task.target == LOSS:
            reaching.update((name, 1 << bit) for bit, name in enumerate(task.outputs))
        elif reaching:
            bits = 0
            for name in task.inputs:
                bits |= reaching.get(name, 0)
            reaching.update(dict.fromkeys(task.outputs, bits))
    return reaching


def _updated(graph: Graph) -> dict[str, str]:
    """Return, by value, the update of several parameters that reads it, or a view of it, as a gradient."""
    updates = {}
    for task in graph.tasks:
        if task.target in UPDATES and len(task.args) > 1:
            for name in task.inputs:
                while name not in updates:
                    updates[name] = task.name
                    maker = graph.task.get(graph.producer.get(name, ""))
                    if maker is None or not maker.free or not maker.inputs:
                        break
                    name = maker.inputs[0]
    return updates


def _summands(task: Task) -> tuple[str, ...]:
    (terms,) = task.args
    assert isinstance(terms, tuple)
    return tuple(term.value for term in terms if isinstance(term, Ref))


def _final(graph: Graph) -> set[str]:
    """Return tasks that no part and no sum depends on."""
    later: defaultdict[str, list[str]] = defaultdict(list)
    for task in graph.tasks:
        for name in task.after:
            later[name].append(task.name)
    plain = {task.name for task in graph.tasks if not task.part and task.target != SUM}
    final: set[str] = set()
    for task in reversed(graph.tasks):
        readers = [reader for name in task.outputs for reader in graph.readers[name]]
        if not task.part and all(name in final and name in plain for name in (*readers, *later[task.name])):
            final.add(task.name)
    return final


def _summed(graph: Graph, sums: list[Task], number: int) -> tuple[list[Value], list[Task]]:
    """Return new values, and tasks that replace a bucket's sums, at the source location of the last one."""
    last, values, tasks, label = sums[-1], list[Value](), list[Task](), f"bucket{number}"
    wholes = [graph.value[task.outputs[0]] for task in sums]
    counts = tuple(math.prod(value.shape) for value in wholes)
    nbytes, dtype = sum(value.bytes for value in wholes), wholes[0].dtype

    def add(name: str, target: str, args: tuple[Argument, ...], **more: Any) -> None:
        where = {"module": last.module, "source": last.source, "phase": last.phase}
        called = {"label": f"{BUCKET} {number}"}
        tasks.append(Task(name, target, args, **{"outputs": (name,), **where, **called, **more}))

    flats, total = [], f"{label}#sum"
    for index, summands in enumerate(zip(*map(_summands, sums))):
        maker = graph.task[graph.producer[summands[-1]]]
        flats.append(f"{label}#cat{index}")
        add(flats[-1], _FLAT, (tuple(map(Ref, summands)),), part=maker.part)
    values += (
        Value(name, (sum(counts),), dtype, nbytes, name, part=(total, index))
        for index, name in enumerate(flats)
    )
    values.append(Value(total, (sum(counts),), dtype, nbytes, total))
    add(total, SUM, (tuple(map(Ref, flats)),))
    views = tuple(f"{label}#view{index}" for index in range(len(sums)))
    values += (
        Value(name, (length,), dtype, whole.bytes, total, part=(total, index))
        for index, (name, length, whole) in enumerate(zip(views, counts, wholes))
    )
    add(f"{label}#views", _PIECES, (Ref(total), counts), outputs=views, unpack=True, free=True)
    for task, name, value in zip(sums, views, wholes):
        tasks.append(replace(task, target=_SHAPED, args=(Ref(name), value.shape), free=True))
    return values, tasks


def grouped(
    graph: Graph,
    homes: Mapping[str, str],
    pins: Mapping[str, str],
    nbytes: int = BUCKET_BYTES,
    few: int = FEW,
) -> Graph:
    """Group updates of small parameters, up to `nbytes` bytes of parameters in each task.

    A group has neighbours in the order in which the backward makes their gradients. They share param group,
    dtype, home (by `homes`) and pin (by task, `pins`). `update bucket<k>` follows the last of their gradients
    and makes `flat` values: the new parameters and each entry of the optimizer state. Parameters of `nbytes`
    or more are updated alone; if at most `few` are small, so are all. Linear in tasks.
    """
    buckets = _parameters(graph, homes, pins, nbytes, few)
    if not buckets:
        return graph
    target = dict(graph.updates)
    values, updates = dict(graph.value), dict.fromkeys(graph.updates)
    flat: list[str] = []
    closing: dict[str, Task] = {}
    gone: set[str] = set()
    for bucket in buckets:
        label = _label(graph, len(closing))
        gone.update(task.name for task in bucket[:-1])
        outputs = []
        for position, column in enumerate(zip(*(task.outputs for task in bucket))):
            states = [graph.value[target[name]] for name in column]
            entry = f"_{states[0].path.rpartition('.')[2]}" if position else ""
            whole = _whole(f"{label}{entry}_next", states)
            for name, state in zip(column, states):
                del values[name], updates[name, state.name]
                updates[whole.name, state.name] = None
            values[whole.name] = whole
            outputs.append(whole.name)
        flat += outputs
        first, args = bucket[0], tuple(task.args[0] for task in bucket)
        closing[bucket[-1].name] = replace(
            first,
            name=f"update {label}",
            args=args,
            outputs=tuple(outputs),
            flops=sum(task.flops for task in bucket),
            module="",
            origin=first.origin or first.name,
        )
    return replace(
        graph,
        values=tuple(values.values()),
        tasks=tuple(closing.get(task.name, task) for task in graph.tasks if task.name not in gone),
        updates=tuple(updates),
        flat=(*graph.flat, *flat),
    )


def _parameters(
    graph: Graph, homes: Mapping[str, str], pins: Mapping[str, str], nbytes: int, few: int
) -> list[list[Task]]:
    """Return the updates of each bucket, two or more, in order."""
    small: list[tuple[Hashable, int, Task]] = []
    for task in graph.tasks:
        if task.target not in UPDATES or len(task.args) > 1 or task.after:
            continue
        (item,) = task.args
        assert isinstance(item, tuple)
        _, number, parameter, _, coefficient, *state = item
        assert isinstance(parameter, Ref)
        value = graph.value[parameter.value]
        # A flat value holds its elements in row-major order.
        if not 0 < value.bytes < nbytes or value.order or any(graph.readers[name] for name in task.outputs):
            continue
        place = homes.get(value.name), pins.get(task.name)
        small.append(((task.target, number, coefficient, len(state), value.dtype, *place), value.bytes, task))
    return [bucket for bucket in filled(small, nbytes) if len(bucket) > 1] if len(small) > few else []


def _whole(name: str, states: list[Value]) -> Value:
    """Return the value that holds the new values of states."""
    first, length = states[0], sum(map(room, states))
    nbytes = length * (first.bytes // math.prod(first.shape))
    return Value(name, (length,), first.dtype, nbytes, name, open=(length, length))


def _label(graph: Graph, number: int) -> str:
    label = f"bucket{number}"
    while f"update {label}" in graph.task or f"{label}_next" in graph.value:
        label += "_"
    return label
