"""Many small gradients of a split graph are brought together and summed in one piece.

As DistributedDataParallel does between processes (Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 2020): gradients wait for their neighbours, in the order the backward makes them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import networkx

from ..ir.graph import SUM, UPDATES, Argument, Graph, Ref, Task, Value

BUCKET_BYTES = 1 << 20
"""Bytes that a link moves in the time in which a copy only starts: 40 µs, hand-offs included, at 25 GB/s. Smaller
buckets would mostly wait for copies to start, larger ones would begin later without being any cheaper."""
FEW = 8
"""Sums up to which each is left alone: they start while the backward runs, and hardly ever wait for each other."""


def bucketed(graph: Graph, nbytes: int = BUCKET_BYTES) -> Graph:
    """The graph with small sums of gradients taken together, up to `nbytes` bytes in each sum.

    A sum is taken in when it is of the backward, below `nbytes`, over summands that the parts made, and when
    only results depend on it: no part waits for it, so that waiting for its neighbours delays no one. Consecutive
    ones of one type make bucket k: for part i `bucket<k>#cat<i>` copies the summands into one flat value, as
    soon as the part has made the last, `bucket<k>#sum` adds these, and the sums are views of it under their old
    names. Up to `FEW` such sums stay as they are. Sums that parts do wait for (a BatchNorm's) share a bucket where
    one task of each part makes all summands. Every element is added in the order in which it was, so the values
    are bit-equal. Linear in tasks but for sorting them.
    """
    buckets = _buckets(graph, nbytes)
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
            made, steps = _summed(graph, buckets[number], f"bucket{number}")
            values += made
            tasks += steps
        elif task.name not in inside:
            tasks.append(task)
    # What reads a sum moves behind the bucket the sum is in.
    place = {task.name: index for index, task in enumerate(tasks)}
    moved = replace(graph, values=tuple(values), tasks=tuple(tasks))
    order = networkx.lexicographical_topological_sort(moved.networkx(), key=place.__getitem__)
    return replace(moved, tasks=tuple(moved.task[name] for name in order))


def _buckets(graph: Graph, nbytes: int) -> list[list[Task]]:
    """The sums of each bucket, two or more, in order."""
    final = _final(graph)
    filling: dict[tuple[str, ...], int] = {}
    found: list[list[Task]] = []
    held: list[int] = []
    twins: list[list[Task]] = []
    small = 0
    before: tuple[str, ...] = ()
    updated = _updated(graph)
    for task in graph.tasks:
        parts, makers = _makers(graph, task, nbytes)
        if parts and task.name in final:
            small += 1
            value = graph.value[task.outputs[0]]
            # A bucket of gradients is one of parameters: no update waits for another's bucket.
            key = value.dtype, updated.get(value.name, ""), *parts
            number = filling.get(key)
            if number is None or held[number] + value.bytes > nbytes:
                number = filling[key] = len(found)
                found.append([])
                held.append(0)
            found[number].append(task)
            held[number] += value.bytes
        elif parts:
            if makers != before:
                twins.append([])
            twins[-1].append(task)
        before = () if task.name in final else makers
    buckets = found if small > FEW else []
    return [bucket for bucket in (*buckets, *twins) if len(bucket) > 1]


def _makers(graph: Graph, task: Task, nbytes: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts whose summands a small sum of the backward adds, and with its type the tasks that make them."""
    if task.target != SUM or task.phase != "backward" or task.after:
        return (), ()
    value, summands = graph.value[task.outputs[0]], _summands(task)
    makers = [graph.producer.get(name, "") for name in summands]
    parts = tuple(graph.task[maker].part if maker else "" for maker in makers)
    if not 0 < value.bytes < nbytes or value.storage != value.name:
        return (), ()
    if len(set(summands)) < len(makers) or not all(parts):
        return (), ()
    return parts, (value.dtype, *makers)


def _updated(graph: Graph) -> dict[str, str]:
    """By value the task that updates several parameters and reads it, or views of it, as a gradient."""
    found = {}
    for task in graph.tasks:
        if task.target in UPDATES and len(task.args) > 1:
            for name in task.inputs:
                while name not in found:
                    found[name] = task.name
                    maker = graph.task.get(graph.producer.get(name, ""))
                    if maker is None or not maker.free or not maker.inputs:
                        break
                    name = maker.inputs[0]
    return found


def _summands(task: Task) -> tuple[str, ...]:
    (terms,) = task.args
    assert isinstance(terms, tuple)
    return tuple(term.value for term in terms if isinstance(term, Ref))


def _final(graph: Graph) -> set[str]:
    """Tasks that no part and no sum depends on."""
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


def _summed(graph: Graph, sums: list[Task], label: str) -> tuple[list[Value], list[Task]]:
    """New values, and the tasks in the place of the sums of a bucket, in the user's code where the last of them is."""
    last, values, tasks = sums[-1], list[Value](), list[Task]()
    wholes = [graph.value[task.outputs[0]] for task in sums]
    counts = tuple(math.prod(value.shape) for value in wholes)
    nbytes, dtype = sum(value.bytes for value in wholes), wholes[0].dtype

    def add(name: str, target: str, args: tuple[Argument, ...], **more: Any) -> None:
        where = {"module": last.module, "source": last.source, "phase": last.phase}
        tasks.append(Task(name, target, args, **{"outputs": (name,), **where, **more}))

    flats, total = [], f"{label}#sum"
    for index, summands in enumerate(zip(*map(_summands, sums))):
        maker = graph.task[graph.producer[summands[-1]]]
        flats.append(f"{label}#cat{index}")
        add(flats[-1], _FLAT, (tuple(map(Ref, summands)),), part=maker.part)
    values += (Value(name, (sum(counts),), dtype, nbytes, name) for name in (*flats, total))
    add(total, SUM, (tuple(map(Ref, flats)),))
    views = tuple(f"{label}#view{index}" for index in range(len(sums)))
    values += (Value(v, (n,), dtype, whole.bytes, total) for v, n, whole in zip(views, counts, wholes))
    add(f"{label}#views", _PIECES, (Ref(total), counts), outputs=views, unpack=True, free=True)
    for task, name, value in zip(sums, views, wholes):
        tasks.append(replace(task, target=_SHAPED, args=(Ref(name), value.shape), free=True))
    return values, tasks


_FLAT, _PIECES = "aten.flatten_dense_tensors.default", "aten.split_with_sizes.default"
_SHAPED = "aten.reshape.default"
