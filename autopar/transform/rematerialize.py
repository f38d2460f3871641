"""Rematerialization: recompute values in the backward if that is cheaper than keeping them.

`torch._functorch.partitioners.min_cut_rematerialization_partition` solves this by a minimum cut, which takes
more than linear time and fixes its own trade-off between memory and time. Here, values are dropped one by
one, by bytes freed per byte recomputed, until `budget` is met. For a budget of 0, segments of the forward,
matrix products included, are recomputed from checkpoints (Chen, Xu, Zhang and Guestrin, "Training deep nets
with sublinear memory cost", 2016).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..ir.graph import Cut, Graph, Ref, Task

_LONGEST = 64
"""Limit on tasks recomputed for one value: more would keep so many values alive that nothing is freed."""
_COSTLY = ("aten.sort", "aten.topk", "aten.argsort", "aten.unique", "aten.nonzero")
"""Targets without FLOPs that take longer than moving their bytes would."""


def recomputed(graph: Graph, budget: float) -> Graph:
    """Recompute cheap values of the forward in the backward of a joint graph.

    `budget`, from 0 to 1: share of `saved_bytes` that may stay saved. Tasks without FLOPs (views,
    elementwise, norms, softmaxes) are recomputed from inputs, state, results of the call and saved values,
    until the budget is met or nothing cheap is left. With a budget of 0, so are tasks with FLOPs, from
    checkpoints that save all passing values, spaced to minimise the bytes of checkpoints plus one segment.
    Random draws and tasks with effects are never repeated. A task `t` is repeated as `t#again` in phase
    "backward", right before the first task that reads its values there, and `after` the task that makes the
    gradient for that reader. Values are bitwise equal. Raises ValueError for a budget outside of 0 … 1.
    """
    if not 0 <= budget <= 1:
        raise ValueError(f"budget={budget!r} is a share of the saved bytes: give a number from 0 to 1")
    selection = _Selection(graph)
    selection.cheap(budget * selection.bytes)
    if budget == 0:
        selection.segments()
    return selection.rewritten() if selection.dropped else graph


def saved(graph: Graph) -> tuple[str, ...]:
    """Return values that the forward keeps for a later phase, each storage once, in order, without results of
    the call."""
    later = {
        graph.value[name].storage for task in graph.tasks if task.phase != "forward" for name in task.inputs
    }
    results = _results(graph)
    return tuple(
        name
        for task in graph.tasks
        if task.phase == "forward"
        for name in task.outputs
        if graph.value[name].storage == name and name in later and name not in results
    )


def saved_bytes(graph: Graph) -> int:
    """Return the bytes of the values that the forward keeps for a later phase."""
    return sum(graph.value[name].bytes for name in saved(graph))


def _results(graph: Graph) -> set[str]:
    """Return storages that live to the end of the call."""
    return {graph.value[name].storage for name in graph.results}


class _Selection:
    """Selection of the storages that stay saved, `saved`, and of those to recompute, `dropped`.

    bytes: of `saved`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {task.name: place for place, task in enumerate(graph.tasks)}
        # If the forward is a program of its own, it has written its updates back before the backward begins.
        whole = any(task.phase == "update" for task in graph.tasks)
        self.changed = frozenset() if whole else graph.mutated
        self.results = _results(graph)
        self.saved = dict.fromkeys(saved(graph))
        self.bytes = saved_bytes(graph)
        self.dropped: set[str] = set()

    def cheap(self, limit: float) -> None:
        """Drop values that are cheap to recompute, the best first, until at most `limit` bytes stay saved."""
        late = self.late()
        rates: dict[str, float] = {}
        for name in self.saved:
            again = self.recomputation(name, costly=False) if name in late else None
            if again is not None:
                rates[name] = self.graph.value[name].bytes / (sum(map(self.touched, again)) or 1)
        for name in sorted(rates, key=rates.__getitem__, reverse=True):
            if self.bytes <= limit:
                return
            # Values dropped meanwhile may have made the recomputation too long.
            if self.recomputation(name, costly=False) is not None:
                self.drop(name)

    def segments(self) -> None:
        """Drop everything that a segment between two checkpoints can recompute, except the checkpoints."""
        points = self.checkpoints()
        options = [_evenly(points, self.bytes / pieces) for pieces in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)]
        if not any(options):
            return

        def rating(chosen: list[_Checkpoint]) -> int:
            marks = [0, *(point.before for point in chosen), self.bytes]
            return max(b - a for a, b in pairwise(marks)) + sum(point.bytes for point in chosen)

        chosen = min(filter(None, options), key=rating)
        stay = frozenset[str]().union(*(point.saved for point in chosen))
        late = self.late()
        for name in reversed(list(self.saved)):
            if name in late and name not in stay and self.recomputation(name, costly=True) is not None:
                self.drop(name)

    def checkpoints(self) -> list[_Checkpoint]:
        """Return the places after which all values that the forward still reads are saved, and some are."""
        value = self.graph.value
        makers = [self.place[self.graph.producer[name]] for name in self.saved]
        upto = [0, *accumulate(value[name].bytes for name in self.saved)]
        forward = [(place, task) for place, task in enumerate(self.graph.tasks) if task.phase == "forward"]
        last = {value[name].storage: place for place, task in forward for name in task.inputs}
        alive: set[str] = set()
        points: list[_Checkpoint] = []
        for place, task in forward:
            made_here = {value[name].storage for name in task.outputs}
            alive |= {name for name in made_here if value[name].kind == "made"}
            alive = {name for name in alive if last.get(name, place) > place}
            saved = frozenset(name for name in alive if name in self.saved)
            if saved and all(map(self.ready, alive)) and (not points or saved != points[-1].saved):
                nbytes = sum(value[name].bytes for name in saved)
                points.append(_Checkpoint(upto[bisect(makers, place)], nbytes, saved))
        return points

    def ready(self, name: str) -> bool:
        """Return True if a storage is there in the backward without recomputation."""
        return self.graph.value[name].kind != "made" or name in self.saved or name in self.results

    def recomputation(self, name: str, *, costly: bool) -> list[Task] | None:
        """Return the tasks that recompute a storage; None if one may not be repeated or they are too many."""
        tasks: dict[str, Task] = {}
        pending = [name]
        while pending:
            name = pending.pop()
            task = self.repeatable(self.graph.task[self.graph.producer[name]])
            if name not in task.outputs or not self.repeats(task, costly):
                return None
            if task.name not in tasks:
                tasks[task.name] = task
                pending += (read for read in task.inputs if not self.ready(self.graph.value[read].storage))
            if len(tasks) > _LONGEST and not costly:
                return None
        return list(tasks.values())

    def repeats(self, task: Task, costly: bool) -> bool:
        """Return True if a task may be recomputed: it has no effects and, unless `costly`, is cheap."""
        if task.phase != "forward" or task.random or task.home or task.after:
            return False
        storages = {self.graph.value[name].storage for name in (*task.inputs, *task.outputs)}
        if not storages.isdisjoint(self.changed):
            return False
        return costly or (
            not task.flops and task.target.startswith("aten.") and not task.target.startswith(_COSTLY)
        )

    def repeatable(self, task: Task) -> Task:
        """Return the repeated form of a task.

        A BatchNorm omits its running statistics, as the forward updated them; a dropout applies the forward's
        mask.
        """
        args = task.args
        if task.target == "aten._native_batch_norm_legit_functional.default" and len(args) == 8:
            target, args = "aten._native_batch_norm_legit.no_stats", (*args[:3], *args[5:])
            return dataclasses.replace(task, target=target, args=args, outputs=task.outputs[:3], cuts=())
        if task.target == "aten.native_dropout.default" and task.random and len(args) == 3:
            output, mask = (self.graph.value[name] for name in task.outputs)
            probability = args[1]
            assert isinstance(probability, (int, float))
            # In half precision the two kernels of an accelerator may round differently.
            if output.dtype in ("float32", "float64") and self.ready(mask.storage):
                scale = 1 / (1 - probability) if probability != 1 else 0.0
                axes = (axis for axis, size in enumerate(output.shape) if size > 1)
                return dataclasses.replace(
                    task, target="aten.native_dropout_backward.default", args=(args[0], Ref(mask.name), scale),
                    outputs=(output.name,), unpack=False, random=None, home=False, after=(),
                    cuts=tuple(Cut((axis, axis), (axis,)) for axis in axes),
                )  # fmt: skip
        return task

    def touched(self, task: Task) -> int:
        """Return the bytes that a task reads and writes."""
        if task.free:
            return 0
        return sum(self.graph.value[name].bytes for name in (*task.inputs, *task.outputs))

    def drop(self, name: str) -> None:
        """Drop a saved storage."""
        self.dropped.add(name)
        del self.saved[name]
        self.bytes -= self.graph.value[name].bytes

    def rewritten(self) -> Graph:
        """Return the graph with dropped values recomputed where the backward reads them."""
        graph = self.graph
        names: dict[str, str] = {}
        tasks: list[Task] = []
        values = list(graph.values)
        for task in graph.tasks:
            if task.phase == "forward":
                tasks.append(task)
                continue
            anchor = self.anchor(task)
            for first in self.needed(task, names):
                again = self.repeatable(first)
                fresh = {name: f"{name}#again" for name in again.outputs}
                lost = {name for name in fresh if not self.ready(graph.value[name].storage)}
                for old, new in fresh.items():
                    storage = graph.value[old].storage
                    storage += "#again" * (old in lost or storage in fresh)
                    values.append(
                        dataclasses.replace(graph.value[old], name=new, storage=storage, label="again")
                    )
                again = dataclasses.replace(
                    again.reading(names), name=f"{first.name}#again", outputs=tuple(fresh.values()),
                    after=(anchor,) if anchor else (), phase=task.phase,
                )  # fmt: skip
                tasks.append(again)
                names |= {name: fresh[name] for name in lost}
            tasks.append(task.reading(names))
        return dataclasses.replace(graph, values=tuple(values), tasks=tuple(tasks))

    def needed(self, reader: Task, names: dict[str, str]) -> list[Task]:
        """Return the tasks to repeat before `reader`, in order: those that make missing values that it needs."""
        missing: dict[str, Task] = {}
        pending = [reader]
        while pending:
            for name in pending.pop().inputs:
                maker = self.graph.producer.get(name)
                if maker is None or name in names or maker in missing:
                    continue
                task = self.graph.task[maker]
                if task.phase == "forward" and not self.ready(self.graph.value[name].storage):
                    missing[maker] = task
                    pending.append(self.repeatable(task))
        return sorted(missing.values(), key=lambda task: self.place[task.name])

    def late(self) -> set[str]:
        """Return storages whose first reader in the backward also reads a value made in the backward."""
        first: dict[str, bool] = {}
        for task in self.graph.tasks:
            if task.phase != "forward":
                for name in task.inputs:
                    first.setdefault(self.graph.value[name].storage, self.anchor(task) is not None)
        return {name for name, late in first.items() if late}

    def anchor(self, task: Task) -> str | None:
        """Return the last task of the backward whose values a task reads; None if it reads none."""
        makers = (self.graph.producer.get(name, "") for name in task.inputs)
        backward = [name for name in makers if name and self.graph.task[name].phase != "forward"]
        return max(backward, key=self.place.__getitem__, default=None)


class _Checkpoint(NamedTuple):
    """A place in the forward: saved bytes `before` it, and the storages `saved` that pass it, with their bytes."""

    before: int
    bytes: int
    saved: frozenset[str]


def _evenly(points: list[_Checkpoint], length: float) -> list[_Checkpoint]:
    """Return checkpoints about `length` bytes apart, each with the fewest passing bytes nearby."""
    chosen: list[_Checkpoint] = []
    start, index = 0, 0
    while index < len(points):
        window: list[int] = []
        while index < len(points) and (not window or points[index].before <= start + length):
            if points[index].before > start + length / 2:
                window.append(index)
            index += 1
        if window:
            best = min(window, key=lambda each: (points[each].bytes, -each))
            chosen.append(points[best])
            start, index = points[best].before, best + 1
    return chosen
