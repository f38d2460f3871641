"""Many small gradients of a split graph are brought together and summed in one piece.

As DistributedDataParallel does between processes (Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 2020): gradients wait for their neighbours, in the order the backward makes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque

from ..ir.graph import SUM, UPDATES, Argument, Graph, Ref, Task, Value

BUCKET_BYTES = 1 << 20
"""What a link moves in the time in which a copy only starts: 40 µs, hand-offs included, at 25 GB/s. Smaller
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
    are bit-equal. Linear in tasks.
    """
    buckets = _buckets(graph, nbytes)
    return _Bucketed(graph, buckets).run() if buckets else graph


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


class _Bucketed:
    """A graph in the making: what reads a sum moves behind the bucket the sum is in."""

    def __init__(self, graph: Graph, buckets: list[list[Task]]) -> None:
        self.graph, self.buckets = graph, buckets
        self.bucket = {task.name: number for number, bucket in enumerate(buckets) for task in bucket}
        self.values = {value.name: value for value in graph.values}
        self.tasks: list[Task] = []
        self.late: set[str] = set()
        self.missing: dict[str, int] = {}
        self.waiting: defaultdict[str, list[Task]] = defaultdict(list)

    def run(self) -> Graph:
        for task in self.graph.tasks:
            number = self.bucket.get(task.name)
            if number is None:
                self.take(task)
                continue
            self.late.add(task.name)
            if task.name == self.buckets[number][-1].name:
                for name in self.close(number):
                    self.arrived(name)
        sums = {
            task.outputs[0]: f"bucket{number}#sum"
            for number, bucket in enumerate(self.buckets)
            for task in bucket
        }
        values = (
            dataclasses.replace(value, storage=sums.get(value.storage, value.storage))
            for value in self.values.values()
        )
        return dataclasses.replace(self.graph, values=tuple(values), tasks=tuple(self.tasks))

    def take(self, task: Task) -> None:
        """Append a task, now or when the last of the buckets it waits for is there."""
        makers = (self.graph.producer.get(name, "") for name in task.inputs)
        before = {name for name in (*makers, *task.after) if name in self.late}
        if not before:
            self.tasks.append(task)
            return
        self.late.add(task.name)
        self.missing[task.name] = len(before)
        for name in before:
            self.waiting[name].append(task)

    def arrived(self, name: str) -> None:
        """Append what has waited for a task and now waits for nothing."""
        ready = deque([name])
        while ready:
            done = ready.popleft()
            self.late.discard(done)
            for task in self.waiting.pop(done, ()):
                self.missing[task.name] -= 1
                if not self.missing[task.name]:
                    self.tasks.append(task)
                    ready.append(task.name)

    def close(self, number: int) -> list[str]:
        """Append the tasks of one bucket; the names of the sums that are there now."""
        sums = self.buckets[number]
        label, last = f"bucket{number}", sums[-1]
        wholes = [self.graph.value[task.outputs[0]] for task in sums]
        counts = tuple(math.prod(value.shape) for value in wholes)
        nbytes, dtype = sum(value.bytes for value in wholes), wholes[0].dtype
        flats = []
        for index, summands in enumerate(zip(*map(_summands, sums))):
            maker = self.graph.task[self.graph.producer[summands[-1]]]
            flats.append(f"{label}#cat{index}")
            self.value(flats[-1], (sum(counts),), dtype, nbytes, flats[-1])
            self.add(
                Task(flats[-1], _FLAT, (tuple(map(Ref, summands)),), outputs=(flats[-1],), part=maker.part),
                last,
            )
        total = f"{label}#sum"
        self.value(total, (sum(counts),), dtype, nbytes, total)
        self.add(Task(total, SUM, (tuple(map(Ref, flats)),), outputs=(total,)), last)
        views = tuple(f"{label}#view{index}" for index in range(len(sums)))
        for name, count, value in zip(views, counts, wholes):
            self.value(name, (count,), dtype, value.bytes, total)
        pieces: tuple[Argument, ...] = (Ref(total), counts)
        self.add(Task(f"{label}#views", _PIECES, pieces, outputs=views, unpack=True, free=True), last)
        for task, name, value in zip(sums, views, wholes):
            args = (Ref(name), value.shape)
            self.tasks.append(dataclasses.replace(task, target=_SHAPED, args=args, free=True))
        return [task.name for task in sums]

    def value(self, name: str, shape: tuple[int, ...], dtype: str, nbytes: int, storage: str) -> None:
        self.values[name] = Value(name, shape, dtype, nbytes, storage)

    def add(self, task: Task, near: Task) -> None:
        """Append a task of our own, in the user's code where its neighbour is."""
        self.tasks.append(dataclasses.replace(task, module=near.module, source=near.source, phase=near.phase))


_FLAT, _PIECES = "aten.flatten_dense_tensors.default", "aten.split_with_sizes.default"
_SHAPED = "aten.reshape.default"
