"""Values that the backward reads are computed again there where that is cheaper than to hold them.

`torch._functorch.partitioners.min_cut_rematerialization_partition` asks the same of a joint graph and takes a
minimum cut, which costs more than linear time and fixes a choice of its own between memory and time. Here values
are given up one by one, those first that free the most bytes for a byte computed again, until `budget` is met.
Without budget, segments of the forward are computed again from checkpoints, matrix products and all: Chen, Xu,
Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import dataclasses
import math

from .graph import Graph, Task, replace_refs

_LONGEST = 64
"""Tasks that may be computed again for one value: more would come alive at once, which frees nothing."""
_COSTLY = ("aten.sort", "aten.topk", "aten.argsort", "aten.unique", "aten.nonzero")
"""Targets without FLOPs that take longer than moving their bytes."""


def recomputed(graph: Graph, budget: float) -> Graph:
    """The joint graph with cheap values of the forward computed again in the backward.

    `budget`, from 0 to 1, is the share of `saved_bytes` that may stay saved. Tasks without FLOPs (views,
    elementwise, norms, softmaxes) are computed again from inputs, state, results of the call and saved values,
    until no more than the budget is saved or no more is cheap; with a budget of 0 also tasks with FLOPs, from
    checkpoints of about the square root of the places where the forward could be cut. Random tasks and tasks with
    effects never are. A task `t` comes again as `t#again` in phase "backward", right before the first task that
    reads its values there, and `after` the one that makes the gradient which that task needs. Values are
    bit-equal: the same task on the same values. Raises ValueError for a budget outside of 0 … 1.
    """
    if not 0 <= budget <= 1:
        raise ValueError(f"budget={budget!r} is a share of the saved bytes: give a number from 0 to 1")
    choice = _Choice(graph)
    choice.cheap(budget * saved_bytes(graph))
    if budget == 0:
        choice.segments()
    return choice.rewritten() if choice.gone else graph


def saved(graph: Graph) -> tuple[str, ...]:
    """Values made in the forward that are held for a later phase, each storage once, in order.

    What the caller gets anyway is not counted.
    """
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
    """Bytes of the values that are held from the forward for a later phase."""
    return sum(graph.value[name].bytes for name in saved(graph))


def _results(graph: Graph) -> set[str]:
    """Storages that live to the end of the call."""
    return {graph.value[name].storage for name in (*graph.outputs, *(made for made, _ in graph.updates))}


class _Choice:
    """What stays saved (`kept`) and what is computed again (`gone`), by storage."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {task.name: place for place, task in enumerate(graph.tasks)}
        self.changed = {graph.value[name].storage for task in graph.tasks for name in task.writes}
        if not any(task.phase == "update" for task in graph.tasks):
            # A forward that is a program of its own has written its updates back when the backward begins.
            self.changed |= graph.mutated
        self.results = _results(graph)
        self.kept = dict.fromkeys(saved(graph))
        self.bytes = saved_bytes(graph)
        self.gone: set[str] = set()

    def cheap(self, limit: float) -> None:
        """Give up what is cheap to compute again, the best first, until `limit` bytes are saved."""
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
            # What has been given up since may have made the way to it too long.
            if self.again(name, costly=False) is not None:
                self.drop(name)

    def segments(self) -> None:
        """Give up all but the checkpoints, where a segment between two of them can be computed again."""
        places = self.places()
        step = math.isqrt(max(0, len(places) - 1)) + 1
        stay = frozenset[str]().union(*places[step - 1 :: step])
        late = self.late()
        for name in reversed(list(self.kept)):
            if name in late and name not in stay and self.again(name, costly=True) is not None:
                self.drop(name)

    def places(self) -> list[frozenset[str]]:
        """What passes each place of the forward where all that passes is there in the backward as it is."""
        forward = [task for task in self.graph.tasks if task.phase == "forward"]
        last = {
            self.graph.value[name].storage: place
            for place, task in enumerate(forward)
            for name in task.inputs
        }
        ends: dict[int, list[str]] = {}
        for name, place in last.items():
            ends.setdefault(place, []).append(name)
        alive: set[str] = set()
        lost = 0
        found: list[frozenset[str]] = []
        for place, task in enumerate(forward):
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
                if passing and passing not in found[-1:]:
                    found.append(passing)
        return found

    def ready(self, name: str) -> bool:
        """Whether a storage is there in the backward without being computed again."""
        return self.graph.value[name].kind != "made" or name in self.kept or name in self.results

    def again(self, name: str, *, costly: bool) -> list[Task] | None:
        """The tasks that make a storage again from what is there; None where they may not, or are too many."""
        found: dict[str, Task] = {}
        pending = [name]
        while pending:
            task = self.graph.task[self.graph.producer[pending.pop()]]
            if task.name in found:
                continue
            if not self.repeats(task, costly) or (len(found) == _LONGEST and not costly):
                return None
            found[task.name] = task
            pending += (
                read for read in _again(task).inputs if not self.ready(self.graph.value[read].storage)
            )
        return list(found.values())

    def repeats(self, task: Task, costly: bool) -> bool:
        """Whether a task may be computed again: it has no effect, and no more FLOPs than allowed."""
        if task.phase != "forward" or task.random or task.writes or task.home or task.colocate or task.after:
            return False
        storages = {self.graph.value[name].storage for name in (*_again(task).inputs, *task.outputs)}
        if not storages.isdisjoint(self.changed):
            return False
        return costly or (
            not task.flops and task.target.startswith("aten.") and not task.target.startswith(_COSTLY)
        )

    def touched(self, task: Task) -> int:
        """Bytes a task reads and writes."""
        if task.free:
            return 0
        return sum(self.graph.value[name].bytes for name in (*task.inputs, *task.outputs))

    def drop(self, name: str) -> None:
        """Give up a saved storage."""
        self.gone.add(name)
        del self.kept[name]
        self.bytes -= self.graph.value[name].bytes

    def rewritten(self) -> Graph:
        """The graph with what was given up computed again where the backward reads it."""
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
                again = _again(first)
                fresh = {name: f"{name}#again" for name in again.outputs}
                for old, new in fresh.items():
                    value = graph.value[old]
                    own = value.storage in fresh or not self.ready(value.storage)
                    storage = f"{value.storage}#again" if own else value.storage
                    values.append(dataclasses.replace(value, name=new, storage=storage))
                tasks.append(
                    dataclasses.replace(
                        _renamed(again, names),
                        name=f"{first.name}#again",
                        outputs=tuple(fresh.values()),
                        after=(anchor,) if anchor else (),
                        phase=task.phase,
                    )
                )
                names.update(
                    (old, new) for old, new in fresh.items() if not self.ready(graph.value[old].storage)
                )
            tasks.append(_renamed(task, names))
        return dataclasses.replace(graph, values=tuple(values), tasks=tuple(tasks))

    def needed(self, reader: Task, names: dict[str, str]) -> list[Task]:
        """The tasks to compute again before `reader`: what it reads and nobody has."""
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
                    pending.append(_again(task))
        return list(found.values())

    def late(self) -> set[str]:
        """Storages whose first reader in the backward waits for another task of the backward."""
        found: dict[str, bool] = {}
        for task in self.graph.tasks:
            if task.phase != "forward":
                for name in task.inputs:
                    found.setdefault(self.graph.value[name].storage, self.anchor(task) is not None)
        return {name for name, late in found.items() if late}

    def anchor(self, task: Task) -> str | None:
        """The last task of the backward whose values a task of the backward reads."""
        makers = (self.graph.producer.get(name, "") for name in task.inputs)
        found = [name for name in makers if name and self.graph.task[name].phase != "forward"]
        return max(found, key=self.place.__getitem__, default=None)


def _again(task: Task) -> Task:
    """What is computed again: a BatchNorm without its running statistics, which the forward has moved on."""
    if task.target != "aten._native_batch_norm_legit_functional.default" or len(task.args) != 8:
        return task
    args = (*task.args[:3], *task.args[5:])
    return dataclasses.replace(
        task, target="aten._native_batch_norm_legit.no_stats", args=args, outputs=task.outputs[:3], cuts=()
    )


def _renamed(task: Task, names: dict[str, str]) -> Task:
    if not any(name in names for name in task.inputs):
        return task
    return dataclasses.replace(
        task,
        args=tuple(replace_refs(argument, names) for argument in task.args),
        kwargs=tuple((key, replace_refs(argument, names)) for key, argument in task.kwargs),
    )
