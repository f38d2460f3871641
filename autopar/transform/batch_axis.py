"""Propagation of the batch axis: the axis of each value that holds the batch, and the tasks worth splitting along it.

A forward pass follows one axis through the cuts of the tasks; further passes remove cuts without a gain. It
assigns at most one axis to each value. If the inputs of a task disagree, the task gets the cut with the
fewest rejoined bytes. Linear in tasks and cuts.

A view may merge the batch with preceding axes: (length, batch, width) to (length × batch, width). The rows of
a part are then strided in the merged axis, in `outer` blocks. Tasks that treat all rows alike stay split, and
so does the view that separates the axes again. (DTensor calls this a strided shard.)

A task that contracts the batch (the gradient of a weight) ends the flow: its parts are summands of a value
without rows. Rows begin again where the backward broadcasts such a value over the batch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from networkx.utils import UnionFind

from ..ir.costed import TAPED
from ..ir.graph import DEFAULT, OWN, SUMMED, Argument, Cut, Graph, Task

LIKE = frozenset(f"aten.new_{kind}.default" for kind in ("empty", "full", "ones", "zeros"))
"""Targets that only read the dtype of their input; any part of it will do."""

_FLOPS_A_BYTE = 32
"""FLOPs in the time of transferring a byte between devices; precise enough to compare two candidate axes."""

_RESHAPES = frozenset({"aten.reshape.default", "aten.view.default"})


def at(argument: Argument | tuple[Argument, ...], path: tuple[int, ...]) -> Argument:
    """Return the argument that a path names."""
    for step in path:
        assert isinstance(argument, tuple)
        argument = argument[step]
    return argument


def batch_of(graph: Graph) -> int | None:
    """Return the number of rows of the batch; None if no input of the forward has an axis.

    Among the sizes of the first two axes of these inputs, it is the one along which most work can be split.
    Ties go to the first axis, then to the most common size. If nothing can be split, it is the most common
    size of a first axis.
    """
    read = {name for task in graph.tasks if task.phase == "forward" for name in task.inputs}
    names = [name for name in graph.inputs if name in read or not graph.readers[name]]
    shapes = [graph.value[name].shape for name in names]
    first = Counter(shape[0] for shape in shapes if shape)
    second = Counter(shape[1] for shape in shapes if len(shape) > 1)
    if not first:
        return None
    sizes = [size for counts in (first, second) for size, _ in counts.most_common()]
    flows = [best_flow(graph, size) for size in dict.fromkeys(sizes) if size > 1]
    best = max(flows, key=_rating, default=None)
    return best.rows if best is not None and best.cuts else sizes[0]


def best_flow(graph: Graph, rows: int, parts: int = 2) -> _Flow:
    """Return the flow along the first axis, or along the second if that splits more work."""
    both = any(graph.value[name].shape[:2] == (rows, rows) for name in graph.inputs)
    return max((_Flow(graph, rows, first, parts) for first in ((0, 1) if both else (0,))), key=_rating)


def _rating(flow: _Flow) -> tuple[bool, bool, int]:
    forward = any(flow.graph.task[name].phase == "forward" for name in flow.cuts)
    return forward, bool(flow.cuts), flow.work


class _Flow:
    """The batch of `rows` rows in a graph: `axis` of the values that hold it, `cuts` of the tasks to split.

    first: axis of the batch in inputs with `rows` there; others have it on the other of their first two axes.
    parts: number of parts, and so of the summands of a sum.
    outer: number of blocks, if above one, of each value with the batch within a merged axis.
    per_part: values of which each part has its own.
    rooted: tasks that a row of the inputs reaches.
    """

    def __init__(self, graph: Graph, rows: int, first: int = 0, parts: int = 2) -> None:
        self.graph, self.rows, self.parts = graph, rows, parts
        self.of_inputs: dict[str, int] = {}
        for name in graph.inputs:
            shape = graph.value[name].shape
            for axis in (1 - first, first):
                if axis < len(shape) and shape[axis] == rows:
                    self.of_inputs[name] = axis
        self.refused: set[str] = set()
        self.follow()
        while wrong := self.inconsistent():
            self.refused |= wrong
            self.follow()
        self.trim_views()
        self.drop_idle()

    def bytes(self, names: Iterable[str]) -> int:
        """Return the total bytes of values."""
        return sum(self.graph.value[name].bytes for name in names)

    def follow(self) -> None:
        """Choose a cut for each task that the batch reaches, or guess the batch axis of its outputs."""
        self.axis = dict(self.of_inputs)
        self.outer: dict[str, int] = {}
        self.per_part: set[str] = set()
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
                    self.per_part.add(name)
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
        """Guess the batch axis of an unsplit task's output, where splitting can begin again; None if none."""
        shape = self.graph.value[name].shape
        for axis, size in enumerate(shape):
            if size == self.rows:
                return axis
        return next((axis for axis, size in enumerate(shape) if (axis, size) in self.sizes), None)

    def choose(self, task: Task) -> tuple[Cut | None, int]:
        """Return the cut with the fewest rejoined and then the most split bytes, and the number of blocks in
        its outputs; None if no cut is worth it."""
        if task.random == DEFAULT or task.home or task.name in self.refused:
            return None, 1
        best: tuple[tuple[int, int], Cut, int] | None = None
        for cut in task.cuts:
            joined, cost = 0, 0
            blocks: set[int] = set()
            other = wrong = False
            for name, axis in zip(task.inputs, cut.inputs, strict=True):
                batch = self.axis.get(name)
                if axis == OWN:
                    wrong = wrong or name not in self.per_part
                elif batch is not None and batch == axis:
                    blocks.add(self.outer.get(name, 1))
                    cost -= self.bytes([name])
                    continue
                else:
                    other = other or axis is not None
                if batch is not None:
                    joined += self.bytes([name])
            if wrong or len(blocks) != 1 or (blocks != {1} and (other or not self.rowwise(task, cut))):
                continue
            if (
                self.worth(task, cut, joined, -cost)
                and (best is None or (joined, cost) < best[0])
                and self.divides_rows(task, cut)
            ):
                best = (joined, cost), cut, blocks.pop()
        if best is not None:
            return best[1:]
        if any(name in self.axis for name in task.inputs):
            return self.merged(task)
        return self.begun(task), 1

    def worth(self, task: Task, cut: Cut, joined: int, held: int) -> bool:
        """Return True if a cut that splits `held` bytes is worth the `joined` bytes that it needs whole."""
        written = self.bytes(task.outputs)
        if SUMMED in cut.outputs and joined:
            return False
        if task.flops:
            return True
        if all(axis == SUMMED for axis in cut.outputs):
            return self.parts * written <= held
        return joined <= written

    def begun(self, task: Task) -> Cut | None:
        """Return the cut of a backward task that broadcasts a gradient, a value without rows, over the
        batch."""
        if task.phase != "backward":
            return None
        shapes = [self.graph.value[name].shape for name in task.outputs]
        for cut in task.cuts:
            fresh = cut.scale and all(axis is None for axis in cut.inputs)
            pairs = zip(cut.outputs, shapes)
            spread = all(axis is not None and axis >= 0 and shape[axis] == self.rows for axis, shape in pairs)
            if fresh and spread and self.divides_rows(task, cut):
                return cut
        return None

    def inconsistent(self) -> set[str]:
        """Return tasks whose parts make their own values although a reader that needs these stays whole; and those that
        draw for a tape, or read it, if others of these stay whole."""
        wrong = set()
        for task in self.graph.tasks:
            if task.target == TAPED and task.random:
                bound = {task.name, *self.graph.readers[task.outputs[-1]]}
                wrong |= set() if bound <= self.cuts.keys() else bound & self.cuts.keys()
        for task in self.graph.tasks if self.per_part else ():
            chosen = self.cuts.get(task.name)
            for index, name in enumerate(task.inputs):
                if name in self.per_part and (chosen is None or chosen.inputs[index] not in (OWN, None)):
                    ways = {cut.inputs[index] for cut in task.cuts}
                    if OWN in ways and None not in ways:
                        wrong.add(self.graph.producer[name])
        return wrong

    def rowwise(self, task: Task, cut: Cut) -> bool:
        """Return True if a cut treats rows independently, so any rows can form a part."""
        return len({self.graph.value[name].shape[axis] for name, axis in cut_axes(task, cut)}) == 1

    def merged(self, task: Task) -> tuple[Cut | None, int]:
        """Return the cut of a reshape that merges the batch with preceding axes, or separates them.

        In memory order, the whole is (left, batch, right) before and after; `left` gives the output axis.
        """
        if task.target not in _RESHAPES or self.axis.get(task.inputs[0]) is None:
            return None, 1
        (name,), (output,) = task.inputs, task.outputs
        axis, before, after = self.axis[name], self.graph.value[name].shape, self.graph.value[output].shape
        if 0 in after:
            return None, 1
        left = math.prod(before[:axis]) * self.outer.get(name, 1)
        for place in reversed(range(len(after))):
            outer, rest = divmod(left, math.prod(after[:place]))
            if outer and not rest and after[place] % (outer * self.rows) == 0:
                scale = ((1, place),) if at(task.args, (1, place)) != -1 else ()
                cut = Cut((axis,), (place,), scale)
                return (cut, outer) if self.divides_rows(task, cut) else (None, 1)
        return None, 1

    def divides_rows(self, task: Task, cut: Cut) -> bool:
        """Return True if parts have whole numbers of rows everywhere, and no output in use is lost."""
        for name, axis in cut_axes(task, cut):
            if self.graph.value[name].shape[axis] % self.rows:
                return False
        for name, axis_out in zip(task.outputs, cut.outputs):
            if axis_out is None and (self.graph.readers[name] or name in self.graph.results):
                return False
        sizes = (at(task.args, path) for path in cut.scale)
        return all(isinstance(size, int) and size % self.rows == 0 for size in sizes)

    def cut_reads(self, task: Task) -> list[str]:
        """Return values that a split task reads in parts."""
        pairs = zip(task.inputs, self.cuts[task.name].inputs)
        return [name for name, axis in pairs if axis is not None and axis == self.axis.get(name)]

    def cut_makes(self, *, summed: bool) -> list[str]:
        """Return outputs of the split tasks that are summed, or those that are joined along an axis."""
        outputs = (zip(self.graph.task[name].outputs, cut.outputs) for name, cut in self.cuts.items())
        pairs = ((name, axis) for pairs in outputs for name, axis in pairs if axis is not None)
        return [name for name, axis in pairs if (axis == SUMMED if summed else axis >= 0)]

    def trim_views(self) -> None:
        """Keep views whole, and thus free, unless adjacent tasks are split.

        From the inputs, a view stays split if another task reads the same parts of the viewed value: one
        transfer then serves both. From the results, it does if a task reads it in parts. So does a view that
        reduces the transferred bytes or has rows within a merged axis.
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
        """Remove the cuts of views without any of `parts` at their `near` end. For other split tasks, add the
        values at their `far` end to `parts`."""
        for task in tasks:
            if task.name in self.cuts:
                one, other = near(task), far(task)
                apart = task.free and parts.isdisjoint(one) and self.outer.keys().isdisjoint(other)
                if apart and self.bytes(other) <= self.bytes(one):
                    del self.cuts[task.name]
                else:
                    parts.update(other)

    def drop_idle(self) -> None:
        """Remove runs of split tasks whose work is less than the cost of rejoining or summing their parts."""
        producer = self.graph.producer
        parts = {
            name for name in (*self.cut_makes(summed=False), *self.per_part) if producer[name] in self.cuts
        }
        stretch = UnionFind(self.cuts)
        tasks = [task for task in self.graph.tasks if task.name in self.cuts]
        gain: defaultdict[str, int] = defaultdict(int)
        for task in tasks:
            for name in (*self.cut_reads(task), *self.per_part.intersection(task.inputs)):
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
        """Return the bytes that the parts of a split task read and write instead of the whole."""
        return 0 if task.free else self.bytes((*self.cut_reads(task), *task.outputs))

    def rejoined(self, phases: tuple[str, ...] = ("forward", "backward", "update")) -> dict[str, int]:
        """Return the bytes of values made in parts that a task of these phases, or the caller, needs whole."""
        parts = set(self.cut_makes(summed=False))
        whole: set[str] = set()
        for task in self.graph.tasks:
            if task.phase in phases and (task.name in self.cuts or task.target not in LIKE):
                in_parts = self.cut_reads(task) if task.name in self.cuts else ()
                whole.update(name for name in task.inputs if name in parts and name not in in_parts)
                whole.update(name for name in task.outputs if name in parts and name in self.graph.results)
        return {name: self.bytes([name]) for name in whole}

    def summed(self) -> dict[str, int]:
        """Return the bytes of the summands of each summed value with a reader."""
        sums = self.cut_makes(summed=True)
        wanted = (name for name in sums if self.graph.readers[name] or name in self.graph.results)
        return {name: self.parts * self.bytes([name]) for name in wanted}

    @cached_property
    def work(self) -> int:
        """The split operations and bytes minus the cost of rejoining, to compare two flows.

        It counts only the forward, without sums, so a graph has the same batch with and without training.
        """
        cut = (task for task in self.graph.tasks if task.phase == "forward" and task.name in self.cuts)
        joined = [task for task in cut if SUMMED not in self.cuts[task.name].outputs]
        rejoined = sum(self.rejoined(("forward",)).values())
        return sum(task.flops + self.touched(task) for task in joined) - _FLOPS_A_BYTE * rejoined


def cut_axes(task: Task, cut: Cut) -> Iterator[tuple[str, int]]:
    """Yield the values that a cut of a task reads or makes in parts, with the axis."""
    pairs = (*zip(task.inputs, cut.inputs), *zip(task.outputs, cut.outputs))
    return ((name, axis) for name, axis in pairs if axis is not None and axis >= 0)
