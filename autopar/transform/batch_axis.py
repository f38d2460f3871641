"""Propagation of the batch axis: the axis each value holds them on, and the tasks worth cutting along it.

The analysis is a forward pass that follows one axis through the cuts the tasks allow, then passes that take
back cuts with nothing to gain (`stretches`). It assigns at most one axis to a value; a task whose inputs disagree
is cut the way that has the fewest bytes rejoined. Linear in tasks and cuts.

A view may merge the batch with axes before it: (length, batch, width) to (length × batch, width). The rows
of a part are then strided in the merged axis, `outer` blocks of them; tasks that treat each row alike, and
the view that takes the axes apart again, go on in parts. (DTensor calls this a strided shard.)

A task that contracts the batch (the gradient of a weight) ends it: its parts are summands of a value that has
no rows. The backward begins rows anew where it spreads such a value over the batch again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.graph import DEFAULT, OWN, SUMMED, Argument, Cut, Graph, Task
from .split_profit import LIKE, Stretches


@dataclass(frozen=True, slots=True)
class Flow:
    """The batch of `rows` rows in a graph: `axis` of the values that hold it, `cuts` of the tasks to cut.

    `outer` counts the blocks of values whose batch lies within a merged axis, where that is more than one.
    `work` weighs what is cut against what is rejoined, for comparing two flows: of the forward alone, and
    without what is summed, so that a graph has the same batch whether it is trained or not.
    """

    rows: int
    axis: dict[str, int]
    outer: dict[str, int]
    cuts: dict[str, Cut]
    work: int


def flow(graph: Graph, rows: int, first: int = 0, parts: int = 2) -> Flow:
    """Follow the inputs' axis of `rows` rows: axis `first` where it has that size, else the other of 0, 1.

    `parts` is how many there will be: a sum has that many summands.
    """
    return _Flow(graph, rows, first, parts).run()


_RESHAPES = frozenset({"aten.reshape.default", "aten.view.default"})


def at(argument: Argument | tuple[Argument, ...], path: tuple[int, ...]) -> Argument:
    """The argument that a path names."""
    for step in path:
        assert isinstance(argument, tuple)
        argument = argument[step]
    return argument


class _Flow:
    def __init__(self, graph: Graph, rows: int, first: int, parts: int) -> None:
        self.graph, self.rows, self.parts = graph, rows, parts
        self.reads = {task.name: task.inputs for task in graph.tasks}
        self.given: dict[str, int] = {}
        for name in graph.inputs:
            shape = graph.value[name].shape
            found = (axis for axis in (first, 1 - first) if axis < len(shape) and shape[axis] == rows)
            axis = next(found, None)
            if axis is not None:
                self.given[name] = axis
        self.refused: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Forget all but what the inputs say and which tasks must stay whole."""
        self.axis = dict(self.given)
        self.outer: dict[str, int] = {}
        self.own: set[str] = set()
        self.cuts: dict[str, Cut] = {}
        self.sizes: set[tuple[int, int]] = set()
        self.rooted: set[str] = set()

    def run(self) -> Flow:
        self.follow()
        while torn := self.torn():
            self.refused |= torn
            self.restart()
            self.follow()
        stretches = Stretches(
            self.graph, self.axis, frozenset(self.outer), self.own, self.rooted, self.cuts, self.parts
        )
        stretches.trim()
        return Flow(self.rows, self.axis, self.outer, stretches.cuts, stretches.work())

    def bytes(self, name: str) -> int:
        return self.graph.value[name].bytes

    def follow(self) -> None:
        """Choose a cut for each task that the batch reaches, or guess where its outputs hold the batch."""
        reached, rooted = set(self.axis), set(self.axis)
        for task in self.graph.tasks:
            if task.phase == "update":
                continue
            reads = self.reads[task.name]
            if not rooted.isdisjoint(reads):
                self.rooted.add(task.name)
            elif reached.isdisjoint(reads) and task.phase != "backward":
                continue
            cut, outer = self.choose(task)
            if cut is None and (reached.isdisjoint(reads) or task.target in LIKE):
                continue
            axes = cut.outputs if cut is not None else map(self.guess, task.outputs)
            for name, axis in zip(task.outputs, axes, strict=True):
                if axis == OWN:
                    self.own.add(name)
                if axis is not None and axis >= 0:
                    self.axis[name] = axis
                    self.sizes.add((axis, self.graph.value[name].shape[axis]))
                    if outer > 1:
                        self.outer[name] = outer
                elif cut is not None:
                    continue
                reached.add(name)
                if task.name in self.rooted:
                    rooted.add(name)
            if cut is not None:
                self.cuts[task.name] = cut

    def guess(self, name: str) -> int | None:
        """Where an uncut task's output seems to hold the batch, so that cutting can begin again after it."""
        shape = self.graph.value[name].shape
        for axis, size in enumerate(shape):
            if size == self.rows:
                return axis
        return next((axis for axis, size in enumerate(shape) if (axis, size) in self.sizes), None)

    def choose(self, task: Task) -> tuple[Cut | None, int]:
        """The cut with the fewest bytes rejoined, then the most bytes cut; None when none is worth it.

        With it, the number of blocks in which the rows of its outputs lie.
        """
        if task.random == DEFAULT or task.home or task.name in self.refused:
            return None, 1
        best: tuple[tuple[int, int], Cut, int] | None = None
        for cut in task.cuts:
            joined, cost = 0, 0
            blocks: set[int] = set()
            other = torn = False
            for name, axis in zip(self.reads[task.name], cut.inputs, strict=True):
                own = self.axis.get(name)
                if axis == OWN:
                    torn = torn or name not in self.own
                elif own is not None and own == axis:
                    blocks.add(self.outer.get(name, 1))
                    cost -= self.bytes(name)
                    continue
                else:
                    other = other or axis is not None
                if own is not None:
                    joined += self.bytes(name)
            if torn or len(blocks) != 1 or (blocks != {1} and (other or not self.rowwise(task, cut))):
                continue
            if (
                self.worth(task, cut, joined, -cost)
                and (best is None or (joined, cost) < best[0])
                and self.right(task, cut)
            ):
                best = (joined, cost), cut, blocks.pop()
        if best is not None:
            return best[1:]
        if any(name in self.axis for name in self.reads[task.name]):
            return self.merged(task)
        return self.begun(task), 1

    def worth(self, task: Task, cut: Cut, joined: int, held: int) -> bool:
        """True if a cut of `held` bytes into parts pays for the `joined` bytes that it needs whole."""
        made = sum(map(self.bytes, task.outputs))
        if SUMMED in cut.outputs and joined:
            return False
        if task.flops:
            return True
        if all(axis == SUMMED for axis in cut.outputs):
            return self.parts * made <= held
        return joined <= made

    def begun(self, task: Task) -> Cut | None:
        """The cut of a backward task that makes rows out of what has none: a gradient spread over the batch."""
        if task.phase != "backward":
            return None
        shapes = [self.graph.value[name].shape for name in task.outputs]
        for cut in task.cuts:
            fresh = cut.scale and all(axis is None for axis in cut.inputs)
            pairs = zip(cut.outputs, shapes)
            spread = all(axis is not None and axis >= 0 and shape[axis] == self.rows for axis, shape in pairs)
            if fresh and spread and self.right(task, cut):
                return cut
        return None

    def torn(self) -> set[str]:
        """Tasks whose outputs each part has for itself though a reader, to whom that matters, stays whole."""
        found = set()
        for task in self.graph.tasks if self.own else ():
            chosen = self.cuts.get(task.name)
            for index, name in enumerate(self.reads[task.name]):
                if name in self.own and (chosen is None or chosen.inputs[index] not in (OWN, None)):
                    ways = {cut.inputs[index] for cut in task.cuts}
                    if OWN in ways and None not in ways:
                        found.add(self.graph.producer[name])
        return found

    def rowwise(self, task: Task, cut: Cut) -> bool:
        """True if a cut leaves each row to itself, so that any rows may make up a part."""
        return len({self.graph.value[name].shape[axis] for name, axis in self.cut_axes(task, cut)}) == 1

    def cut_axes(self, task: Task, cut: Cut) -> Iterator[tuple[str, int]]:
        """Values that a cut takes or makes in parts, with the axis."""
        pairs = (*zip(self.reads[task.name], cut.inputs), *zip(task.outputs, cut.outputs))
        return ((name, axis) for name, axis in pairs if axis is not None and axis >= 0)

    def merged(self, task: Task) -> tuple[Cut | None, int]:
        """The cut of a reshape that merges the batch with axes before it, or takes such axes apart.

        In memory order the whole is (left, batch, right) before and after; only `left` is to be found again.
        """
        if task.target not in _RESHAPES or self.axis.get(self.reads[task.name][0]) is None:
            return None, 1
        (name,), (made,) = self.reads[task.name], task.outputs
        axis, before, after = self.axis[name], self.graph.value[name].shape, self.graph.value[made].shape
        if 0 in after:
            return None, 1
        left = math.prod(before[:axis]) * self.outer.get(name, 1)
        for place in reversed(range(len(after))):
            outer, rest = divmod(left, math.prod(after[:place]))
            if outer and not rest and after[place] % (outer * self.rows) == 0:
                scale = ((1, place),) if at(task.args, (1, place)) != -1 else ()
                cut = Cut((axis,), (place,), scale)
                return (cut, outer) if self.right(task, cut) else (None, 1)
        return None, 1

    def right(self, task: Task, cut: Cut) -> bool:
        """True if parts have whole numbers of rows everywhere."""
        for name, axis in self.cut_axes(task, cut):
            if self.graph.value[name].shape[axis] % self.rows:
                return False
        for name, made in zip(task.outputs, cut.outputs):
            if made is None and (self.graph.readers[name] or name in self.graph.results):
                return False
        sizes = (at(task.args, path) for path in cut.scale)
        return all(isinstance(size, int) and size % self.rows == 0 for size in sizes)
