"""Propagation of the batch axis: the axis each value holds the batch on, and the tasks worth cutting along it.

The analysis is a forward pass that follows one axis through the cuts the tasks allow, then passes that take
back cuts with nothing to gain. It assigns at most one axis to a value; a task whose inputs disagree is cut the way
that has the fewest bytes rejoined. Linear in tasks and cuts.

A view may merge the batch with axes before it: (length, batch, width) to (length × batch, width). The rows
of a part are then strided in the merged axis, `outer` blocks of them; tasks that treat each row alike, and
the view that takes the axes apart again, go on in parts. (DTensor calls this a strided shard.)

A task that contracts the batch (the gradient of a weight) ends it: its parts are summands of a value that has
no rows. The backward begins rows anew where it spreads such a value over the batch again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from networkx.utils import UnionFind

from ..ir.graph import DEFAULT, OWN, SUMMED, Argument, Cut, Graph, Task

LIKE = frozenset(f"aten.new_{kind}.default" for kind in ("empty", "full", "ones", "zeros"))
"""Targets to which any part of what they read says all, its dtype."""

_FLOPS_A_BYTE = 32
"""Operations that take as long as moving a byte between devices: enough to tell two axes of a batch apart."""

_RESHAPES = frozenset({"aten.reshape.default", "aten.view.default"})


def at(argument: Argument | tuple[Argument, ...], path: tuple[int, ...]) -> Argument:
    """The argument that a path names."""
    for step in path:
        assert isinstance(argument, tuple)
        argument = argument[step]
    return argument


class Flow:
    """The batch of `rows` rows in a graph: `axis` of the values that hold it, `cuts` of the tasks to cut.

    Inputs hold it on axis `first` where that has so many rows, else on the other of the first two. `parts` is how many
    there will be: a sum has that many summands. `outer` counts the blocks of values whose batch lies within a merged
    axis, where that is more than one; `own` are values that each part has for itself, `rooted` the tasks that a row of
    the inputs reaches.
    """

    def __init__(self, graph: Graph, rows: int, first: int = 0, parts: int = 2) -> None:
        self.graph, self.rows, self.parts = graph, rows, parts
        self.given: dict[str, int] = {}
        for name in graph.inputs:
            shape = graph.value[name].shape
            found = (axis for axis in (first, 1 - first) if axis < len(shape) and shape[axis] == rows)
            axis = next(found, None)
            if axis is not None:
                self.given[name] = axis
        self.refused: set[str] = set()
        self.follow()
        while torn := self.torn():
            self.refused |= torn
            self.follow()
        self.trim_views()
        self.drop_idle()

    def bytes(self, names: Iterable[str]) -> int:
        """Bytes of values together."""
        return sum(self.graph.value[name].bytes for name in names)

    def follow(self) -> None:
        """Choose a cut for each task that the batch reaches, or guess where its outputs hold the batch."""
        self.axis = dict(self.given)
        self.outer: dict[str, int] = {}
        self.own: set[str] = set()
        self.cuts: dict[str, Cut] = {}
        self.sizes: set[tuple[int, int]] = set()
        self.rooted: set[str] = set()
        reached, rooted = set(self.axis), set(self.axis)
        for task in self.graph.tasks:
            if task.phase == "update":
                continue
            if not rooted.isdisjoint(task.inputs):
                self.rooted.add(task.name)
            elif reached.isdisjoint(task.inputs) and task.phase != "backward":
                continue
            cut, outer = self.choose(task)
            if cut is None and (reached.isdisjoint(task.inputs) or task.target in LIKE):
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
        """The axis on which an uncut task's output seems to hold the batch: cutting can begin again after it."""
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
            for name, axis in zip(task.inputs, cut.inputs, strict=True):
                own = self.axis.get(name)
                if axis == OWN:
                    torn = torn or name not in self.own
                elif own is not None and own == axis:
                    blocks.add(self.outer.get(name, 1))
                    cost -= self.bytes([name])
                    continue
                else:
                    other = other or axis is not None
                if own is not None:
                    joined += self.bytes([name])
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
        if any(name in self.axis for name in task.inputs):
            return self.merged(task)
        return self.begun(task), 1

    def worth(self, task: Task, cut: Cut, joined: int, held: int) -> bool:
        """True if a cut of `held` bytes into parts pays for the `joined` bytes that it needs whole."""
        made = self.bytes(task.outputs)
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
            for index, name in enumerate(task.inputs):
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
        pairs = (*zip(task.inputs, cut.inputs), *zip(task.outputs, cut.outputs))
        return ((name, axis) for name, axis in pairs if axis is not None and axis >= 0)

    def merged(self, task: Task) -> tuple[Cut | None, int]:
        """The cut of a reshape that merges the batch with axes before it, or takes such axes apart.

        In memory order the whole is (left, batch, right) before and after; only `left` is to be found again.
        """
        if task.target not in _RESHAPES or self.axis.get(task.inputs[0]) is None:
            return None, 1
        (name,), (made,) = task.inputs, task.outputs
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

    def cut_reads(self, task: Task) -> list[str]:
        """Values a cut task reads in the parts they hold the batch in."""
        pairs = zip(task.inputs, self.cuts[task.name].inputs)
        return [name for name, axis in pairs if axis is not None and axis == self.axis.get(name)]

    def cut_makes(self, axes: Callable[[int], bool]) -> list[str]:
        """Outputs of the cut tasks on the axes that are asked for."""
        made = (zip(self.graph.task[name].outputs, cut.outputs) for name, cut in self.cuts.items())
        return [name for pairs in made for name, axis in pairs if axis is not None and axes(axis)]

    def trim_views(self) -> None:
        """Views stay whole, as free as they are, unless what is cut is about them.

        First from the inputs on: not where something else takes the same parts of what is viewed, so that what it
        moves serves both. Then from the results back: not where something reads the view in parts. A view that leaves
        less to move, or is of rows within a merged axis, stays cut too.
        """
        computed = (self.graph.task[name] for name in self.cuts if not self.graph.task[name].free)
        parts = {name for task in computed for name in self.cut_reads(task)}
        self.trim(self.graph.tasks, parts, self.cut_reads, lambda task: task.outputs)
        self.trim(reversed(self.graph.tasks), set(), lambda task: task.outputs, self.cut_reads)

    def trim(
        self,
        tasks: Iterable[Task],
        parts: set[str],
        near: Callable[[Task], Iterable[str]],
        far: Callable[[Task], Iterable[str]],
    ) -> None:
        """Take back the cuts of views that have nothing of `parts` at their `near` end; what is at the `far` end of the
        other cut tasks comes to be among `parts`."""
        for task in tasks:
            if task.name in self.cuts:
                one, other = near(task), far(task)
                apart = task.free and parts.isdisjoint(one) and self.outer.keys().isdisjoint(other)
                if apart and self.bytes(other) <= self.bytes(one):
                    del self.cuts[task.name]
                else:
                    parts.update(other)

    def drop_idle(self) -> None:
        """Take back stretches of cut tasks that do no more than rejoining them, or adding up their parts, costs."""
        producer = self.graph.producer
        parts = {name for name in (*self.cut_makes(_is_axis), *self.own) if producer[name] in self.cuts}
        stretch = UnionFind(self.cuts)
        tasks = [task for task in self.graph.tasks if task.name in self.cuts]
        gain: defaultdict[str, int] = defaultdict(int)
        for task in tasks:
            for name in (*self.cut_reads(task), *self.own.intersection(task.inputs)):
                if name in parts:
                    stretch.union(producer[name], task.name)
        for name, size in (*self.rejoined().items(), *self.summed().items()):
            gain[stretch[producer[name]]] -= 2 * size
        for task in tasks:
            gain[stretch[task.name]] += self.touched(task)
        computes = {stretch[task.name] for task in tasks if task.flops}
        rooted = {stretch[name] for name in self.rooted.intersection(self.cuts)}
        keep = {name for name in rooted if name in computes or gain[name] > 0}
        self.cuts = {name: cut for name, cut in self.cuts.items() if stretch[name] in keep}

    def touched(self, task: Task) -> int:
        """Bytes that the parts of a cut task read and write in place of the whole."""
        return 0 if task.free else self.bytes((*self.cut_reads(task), *task.outputs))

    def rejoined(self, phases: tuple[str, ...] = ("forward", "backward", "update")) -> dict[str, int]:
        """Bytes of the values made in parts that a task of these phases, or the caller, needs whole."""
        parts = set(self.cut_makes(_is_axis))
        whole: set[str] = set()
        for task in self.graph.tasks:
            if task.phase in phases and (task.name in self.cuts or task.target not in LIKE):
                given = self.cut_reads(task) if task.name in self.cuts else ()
                whole.update(name for name in task.inputs if name in parts and name not in given)
                whole.update(name for name in task.outputs if name in parts and name in self.graph.results)
        return {name: self.bytes([name]) for name in whole}

    def summed(self) -> dict[str, int]:
        """Bytes of the summands of each value that is summed, where something reads it."""
        made = self.cut_makes(lambda axis: axis == SUMMED)
        wanted = (name for name in made if self.graph.readers[name] or name in self.graph.results)
        return {name: self.parts * self.bytes([name]) for name in wanted}

    @cached_property
    def work(self) -> int:
        """Operations and bytes that are cut, less what rejoining takes, for comparing two flows.

        Of the forward alone, and without what is summed, so that a graph has the same batch whether it is trained or
        not.
        """
        cut = (task for task in self.graph.tasks if task.phase == "forward" and task.name in self.cuts)
        kept = [task for task in cut if SUMMED not in self.cuts[task.name].outputs]
        rejoined = sum(self.rejoined(("forward",)).values())
        return sum(task.flops + self.touched(task) for task in kept) - _FLOPS_A_BYTE * rejoined


def _is_axis(axis: int) -> bool:
    return axis >= 0
