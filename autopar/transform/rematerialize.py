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
    choice = _Choice(graph)
    choice.cheap(budget * saved_bytes(graph))
    if budget == 0:
        others = [_Choice(graph), _Choice(graph)]
        others[0].cheap(0)
        for other in others:
            other.segments()
        # While the backward of a segment runs, all its values are alive again.
        better = [choice, *(other for other in others if other.bytes <= choice.bytes)]
        choice = min(better, key=lambda choice: choice.bytes + choice.largest)
    return choice.rewritten() if choice.gone else graph


def saved(graph: Graph) -> tuple[str, ...]:
    """Return values that the forward keeps for a later phase, each storage once, in order, without results of
    the call."""
    later = {
        graph.value[name].storage for task in graph.tasks if task.phase != "forward" for name in task.inputs
    }
    kept = _results(graph)
    return tuple(
        name
        for task in graph.tasks
        if task.phase == "forward"
        for name in task.outputs
        if graph.value[name].storage == name and name in later and name not in kept
    )


def saved_bytes(graph: Graph) -> int:
    """Return the bytes of the values that the forward keeps for a later phase."""
    return sum(graph.value[name].bytes for name in saved(graph))


def _results(graph: Graph) -> set[str]:
    """Return storages that live to the end of the call."""
    return {graph.value[name].storage for name in graph.results}


class _Choice:
    """Choice of storages to keep saved (`kept`) and to recompute (`gone`).

    bytes: of `kept`.
    largest: bytes of the largest segment.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {task.name: place for place, task in enumerate(graph.tasks)}
        # If the forward is a program of its own, it has written its updates back before the backward begins.
        whole = any(task.phase == "update" for task in graph.tasks)
        self.changed = frozenset() if whole else graph.mutated
        self.results = _results(graph)
        self.kept = dict.fromkeys(saved(graph))
        self.bytes = saved_bytes(graph)
        self.gone: set[str] = set()
        self.largest = 0

    def cheap(self, limit: float) -> None:
        """Drop values that are cheap to recompute, the best first, until at most `limit` bytes stay saved."""
        late = self.late()
        rated = []
        for order, name in enumerate(self.kept):
            again = self.again(name, costly=False) if name in late else None
            if again is not None:
                work = sum(map(self.touched, again)) or 1
                rated.append((-self.graph.value[name].bytes / work, order, name))
        for _, _, name in sorted(rated):
            if self.bytes <= limit:
                return
            # Values dropped meanwhile may have made the recomputation too long.
            if self.again(name, costly=False) is not None:
                self.drop(name)

    def segments(self) -> None:
        """Drop everything that a segment between two checkpoints can recompute, except the checkpoints."""
        made = [self.place[self.graph.producer[name]] for name in self.kept]
        upto = [0, *accumulate(self.graph.value[name].bytes for name in self.kept)]
        places = [
            (upto[bisect(made, place)], sum(self.graph.value[name].bytes for name in passing), place, passing)
            for place, passing in self.places()
        ]
        best: tuple[float, list[tuple[int, frozenset[str]]]] | None = None
        for pieces in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
            chosen = _evenly([(held, passing) for held, passing, _, _ in places], self.bytes / pieces)
            marks = [0, *(places[index][0] for index in chosen), self.bytes]
            longest = max(after - before for before, after in pairwise(marks))
            rating = longest + sum(places[index][1] for index in chosen)
            if chosen and (best is None or rating < best[0]):
                best = rating, [places[index][2:] for index in chosen]
        if best is None:
            return
        bounds = [place for place, _ in best[1]]
        stay = frozenset[str]().union(*(passing for _, passing in best[1]))
        regained = [0] * (len(bounds) + 1)
        late = self.late()
        for name in reversed(list(self.kept)):
            if name in late and name not in stay and self.again(name, costly=True) is not None:
                self.drop(name)
                place = self.place[self.graph.producer[name]]
                regained[bisect(bounds, place)] += self.graph.value[name].bytes
        self.largest = max(regained)

    def places(self) -> list[tuple[int, frozenset[str]]]:
        """Return tasks of the forward after which all values still read are saved, with these storages."""
        forward = [(place, task) for place, task in enumerate(self.graph.tasks) if task.phase == "forward"]
        last = {self.graph.value[name].storage: place for place, task in forward for name in task.inputs}
        ends: dict[int, list[str]] = {}
        for name, place in last.items():
            ends.setdefault(place, []).append(name)
        alive: set[str] = set()
        lost = 0
        found: list[tuple[int, frozenset[str]]] = []
        for place, task in forward:
            for name in {self.graph.value[made].storage for made in task.outputs} - alive:
                if self.graph.value[name].kind == "made" and last.get(name, place) > place:
                    alive.add(name)
                    lost += not self.ready(name)
            for name in ends.get(place, ()):
                if name in alive:
                    alive.remove(name)
                    lost -= not self.ready(name)
            if not lost:
                passing = frozenset(name for name in alive if name in self.kept)
                if passing and (not found or passing != found[-1][1]):
                    found.append((place, passing))
        return found

    def ready(self, name: str) -> bool:
        """Return True if a storage is there in the backward without recomputation."""
        return self.graph.value[name].kind != "made" or name in self.kept or name in self.results

    def again(self, name: str, *, costly: bool) -> list[Task] | None:
        """Return the tasks that recompute a storage; None if one may not be repeated or they are too many."""
        found: dict[str, Task] = {}
        pending = [name]
        while pending:
            name = pending.pop()
            task = self.anew(self.graph.task[self.graph.producer[name]])
            if name not in task.outputs or not self.repeats(task, costly):
                return None
            if task.name in found:
                continue
            if len(found) == _LONGEST and not costly:
                return None
            found[task.name] = task
            pending += (read for read in task.inputs if not self.ready(self.graph.value[read].storage))
        return list(found.values())

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

    def anew(self, task: Task) -> Task:
        """Return the repeated form of a task.

        A BatchNorm omits its running statistics, as the forward updated them; a dropout applies the forward's
        mask.
        """
        args = task.args
        if task.target == "aten._native_batch_norm_legit_functional.default" and len(args) == 8:
            return dataclasses.replace(
                task,
                target="aten._native_batch_norm_legit.no_stats",
                args=(*args[:3], *args[5:]),
                outputs=task.outputs[:3],
                cuts=(),
            )
        if task.target == "aten.native_dropout.default" and task.random and len(args) == 3:
            made, mask = (self.graph.value[name] for name in task.outputs)
            probability = args[1]
            assert isinstance(probability, (int, float))
            # In half precision the two kernels of an accelerator may round differently.
            if made.dtype in ("float32", "float64") and self.ready(mask.storage):
                scale = 1 / (1 - probability) if probability != 1 else 0.0
                axes = (axis for axis, size in enumerate(made.shape) if size > 1)
                return dataclasses.replace(
                    task,
                    target="aten.native_dropout_backward.default",
                    args=(args[0], Ref(mask.name), scale),
                    outputs=(made.name,),
                    unpack=False,
                    random=None,
                    home=False,
                    after=(),
                    cuts=tuple(Cut((axis, axis), (axis,)) for axis in axes),
                )
        return task

    def touched(self, task: Task) -> int:
        """Return the bytes that a task reads and writes."""
        if task.free:
            return 0
        return sum(self.graph.value[name].bytes for name in (*task.inputs, *task.outputs))

    def drop(self, name: str) -> None:
        """Drop a saved storage."""
        self.gone.add(name)
        del self.kept[name]
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
            needed = self.needed(task, names)
            anchor = self.anchor(task)
            for first in sorted(needed, key=lambda task: self.place[task.name]):
                again = self.anew(first)
                fresh = {name: f"{name}#again" for name in again.outputs}
                for old, new in fresh.items():
                    value = graph.value[old]
                    own = value.storage in fresh or not self.ready(value.storage)
                    storage = f"{value.storage}#again" if own else value.storage
                    values.append(dataclasses.replace(value, name=new, storage=storage))
                tasks.append(
                    dataclasses.replace(
                        again.reading(names),
                        name=f"{first.name}#again",
                        outputs=tuple(fresh.values()),
                        after=(anchor,) if anchor else (),
                        phase=task.phase,
                    )
                )
                names.update(
                    (old, new) for old, new in fresh.items() if not self.ready(graph.value[old].storage)
                )
            tasks.append(task.reading(names))
        return dataclasses.replace(graph, values=tuple(values), tasks=tuple(tasks))

    def needed(self, reader: Task, names: dict[str, str]) -> list[Task]:
        """Return the tasks to repeat before `reader`: those that make missing values that it needs."""
        found: dict[str, Task] = {}
        pending = [reader]
        while pending:
            for name in pending.pop().inputs:
                maker = self.graph.producer.get(name)
                if maker is None or name in names or maker in found:
                    continue
                task = self.graph.task[maker]
                if task.phase == "forward" and not self.ready(self.graph.value[name].storage):
                    found[maker] = task
                    pending.append(self.anew(task))
        return list(found.values())

    def late(self) -> set[str]:
        """Return storages whose first reader in the backward also reads a value made in the backward."""
        found: dict[str, bool] = {}
        for task in self.graph.tasks:
            if task.phase != "forward":
                for name in task.inputs:
                    found.setdefault(self.graph.value[name].storage, self.anchor(task) is not None)
        return {name for name, late in found.items() if late}

    def anchor(self, task: Task) -> str | None:
        """Return the last task of the backward whose values a task reads; None if it reads none."""
        makers = (self.graph.producer.get(name, "") for name in task.inputs)
        found = [name for name in makers if name and self.graph.task[name].phase != "forward"]
        return max(found, key=self.place.__getitem__, default=None)


def _evenly(places: list[tuple[int, int]], length: float) -> list[int]:
    """Return indices of places (bytes before, passing bytes) about `length` bytes apart, each with the fewest
    passing bytes nearby."""
    chosen: list[int] = []
    start, index = 0, 0
    while index < len(places):
        window: list[int] = []
        while index < len(places) and (not window or places[index][0] <= start + length):
            if places[index][0] > start + length / 2:
                window.append(index)
            index += 1
        if window:
            chosen.append(min(window, key=lambda found: (places[found][1], -found)))
            start, index = places[chosen[-1]][0], chosen[-1] + 1
    return chosen
