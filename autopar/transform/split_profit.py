"""Stretches of tasks that are cut, and which of them gain nothing by it.

Views are free and stay whole unless what is cut is about them; a stretch of tasks that computes little is taken
back where to rejoin it, or to add its parts up, moves more bytes than its parts share out. Linear in tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from ..ir.graph import SUMMED, Cut, Graph, Task

LIKE = frozenset(f"aten.new_{kind}.default" for kind in ("empty", "full", "ones", "zeros"))
"""Targets to which any part of what they read says all, its dtype."""

_FLOPS_A_BYTE = 32
"""Operations that take as long as moving a byte between devices: enough to tell two axes of a batch apart."""


class Stretches:
    """The cut tasks of a graph: `axis` of the values that hold the batch, `strided` those that hold it within a
    merged axis, `own` those that each part has for itself, `rooted` the tasks that a row of the inputs reaches,
    `cuts` by task, `parts` how many there will be.
    """

    def __init__(
        self,
        graph: Graph,
        axis: Mapping[str, int],
        strided: Collection[str],
        own: Collection[str],
        rooted: Collection[str],
        cuts: Mapping[str, Cut],
        parts: int,
    ) -> None:
        self.graph, self.axis, self.parts = graph, axis, parts
        self.strided, self.own, self.rooted = frozenset(strided), frozenset(own), frozenset(rooted)
        self.cuts = dict(cuts)
        self.reads = {task.name: task.inputs for task in graph.tasks}

    def trim(self) -> None:
        """Take back the cuts with nothing to gain."""
        self.trim_front()
        self.trim_back()
        self.drop_idle()

    def bytes(self, name: str) -> int:
        """Bytes of a value."""
        return self.graph.value[name].bytes

    def wanted(self, name: str) -> bool:
        """True if a task or the caller reads a value."""
        return bool(self.graph.readers[name]) or name in self.graph.results

    def made_cut(self) -> set[str]:
        """Values that come in parts."""
        return {
            name
            for task in self.graph.tasks
            if task.name in self.cuts
            for name, axis in zip(task.outputs, self.cuts[task.name].outputs)
            if axis is not None and axis >= 0
        }

    def cut_reads(self, task: Task) -> list[str]:
        """Values a cut task reads in the parts they hold the batch in."""
        return [
            name
            for name, axis in zip(self.reads[task.name], self.cuts[task.name].inputs)
            if axis is not None and axis == self.axis.get(name)
        ]

    def trim_front(self) -> None:
        """Views of whole values stay whole: a part of the view is as free as a view of the part.

        Not where something else takes the same parts of the value: what it moves then serves both.
        """
        parts: set[str] = set()
        for task in self.graph.tasks:
            if task.name in self.cuts and not task.free:
                parts.update(self.cut_reads(task))
        for task in self.graph.tasks:
            if task.name not in self.cuts:
                continue
            given = self.cut_reads(task)
            if task.free and parts.isdisjoint(given) and self.strided.isdisjoint(task.outputs):
                grows = sum(map(self.bytes, task.outputs)) > sum(map(self.bytes, given))
                if not grows:
                    del self.cuts[task.name]
                    continue
            parts.update(task.outputs)

    def trim_back(self) -> None:
        """Views that nothing reads in parts stay whole, unless they leave less to rejoin."""
        wanted: set[str] = set()
        for task in reversed(self.graph.tasks):
            if task.name not in self.cuts:
                continue
            given = self.cut_reads(task)
            if task.free and wanted.isdisjoint(task.outputs) and self.strided.isdisjoint(given):
                shrinks = sum(map(self.bytes, task.outputs)) < sum(map(self.bytes, given))
                if not shrinks:
                    del self.cuts[task.name]
                    continue
            wanted.update(given)

    def touched(self, task: Task) -> int:
        """Bytes that the parts of a cut task read and write in place of the whole."""
        if task.free:
            return 0
        return sum(map(self.bytes, (*self.cut_reads(task), *task.outputs)))

    def drop_idle(self) -> None:
        """Take back stretches of cut tasks that do no more than rejoining them would cost."""
        parts = {name for name in (*self.made_cut(), *self.own) if self.graph.producer[name] in self.cuts}
        leader: dict[str, str] = {}

        def find(name: str) -> str:
            while leader[name] != name:
                leader[name] = leader[leader[name]]
                name = leader[name]
            return name

        for task in self.graph.tasks:
            if task.name in self.cuts:
                leader[task.name] = task.name
                for name in (*self.cut_reads(task), *self.own.intersection(self.reads[task.name])):
                    if name in parts:
                        leader[find(self.graph.producer[name])] = find(task.name)
        gain: defaultdict[str, int] = defaultdict(int)
        computes: set[str] = set()
        for name, size in (*self.rejoined().items(), *self.summed().items()):
            gain[find(self.graph.producer[name])] -= 2 * size
        for task in self.graph.tasks:
            if task.name in self.cuts:
                gain[find(task.name)] += self.touched(task)
                if task.flops:
                    computes.add(find(task.name))
        rooted = {find(name) for name in self.rooted.intersection(leader)}
        self.cuts = {
            name: cut
            for name, cut in self.cuts.items()
            if find(name) in rooted and (find(name) in computes or gain[find(name)] > 0)
        }

    def rejoined(self, phases: tuple[str, ...] = ("forward", "backward", "update")) -> dict[str, int]:
        """Bytes of the values made in parts that a task of these phases, or the caller, needs whole."""
        parts = self.made_cut()
        whole: set[str] = set()
        for task in self.graph.tasks:
            if task.phase in phases and (task.name in self.cuts or task.target not in LIKE):
                given = self.cut_reads(task) if task.name in self.cuts else ()
                whole.update(name for name in self.reads[task.name] if name in parts and name not in given)
                whole.update(name for name in task.outputs if name in parts and name in self.graph.results)
        return {name: self.bytes(name) for name in whole}

    def summed(self) -> dict[str, int]:
        """Bytes of the summands of each value that is summed."""
        return {
            name: self.parts * self.bytes(name)
            for task in self.graph.tasks
            if task.name in self.cuts
            for name, axis in zip(task.outputs, self.cuts[task.name].outputs)
            if axis == SUMMED and self.wanted(name)
        }

    def work(self) -> int:
        """What is cut, in floating-point operations and bytes, less what rejoining takes."""
        forward = (task for task in self.graph.tasks if task.phase == "forward" and task.name in self.cuts)
        kept = (task for task in forward if SUMMED not in self.cuts[task.name].outputs)
        cut = sum(task.flops + self.touched(task) for task in kept)
        return cut - _FLOPS_A_BYTE * sum(self.rejoined(("forward",)).values())
