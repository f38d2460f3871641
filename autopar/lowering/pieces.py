"""From a proved program to one whose lanes call kernels of many tasks: maximal stretches of a lane's steps between
hand-offs become one `Piece` each.

A piece reads at its start and writes at its end, so nothing of another lane can come between: what holds of the
program holds of the new one, and `check` proves it again. A kernel hands on no memory that it was given. So views of
what it does not make stay steps of their own before it, and views of its results after it, where nothing in it needs
them. What stays eager (`barrier`) ends a stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from ..ir.graph import Graph, Task
from ..ir.program import Buffer, Compute, Free, Lane, Piece, Program, Step, reads


def pieced(program: Program, graph: Graph, barrier: Callable[[Task], bool]) -> Program:
    """The same program with pieces in the place of stretches of at least one task that moves data. Linear in steps.

    Tasks that draw random numbers, and those that `barrier` holds back, stay steps of their own.
    """
    readers: dict[str, set[int]] = {}
    for number, step in enumerate(step for lane in program.lanes for step in lane.steps):
        for name in reads(step):
            readers.setdefault(name, set()).add(number)
    kept, number, lanes = frozenset(program.results), 0, []
    stretches: list[_Stretch] = []
    for lane in program.lanes:
        steps: list[Step] = []
        run: list[Step] = []

        def close(run: list[Step], end: int, steps: list[Step] = steps) -> None:
            own = range(end - len(run), end)

            def outside(name: str) -> bool:
                return name in kept or any(reader not in own for reader in readers.get(name, ()))

            stretches.append(_Stretch(run, graph, program, outside))
            steps.extend(stretches[-1].steps())

        for step in lane.steps:
            if isinstance(step, Free) or (
                isinstance(step, Compute) and _inner(graph.task[step.task], barrier)
            ):
                run.append(step)
            else:
                close(run, number)
                steps.append(step)
                run = []
            number += 1
        close(run, number)
        lanes.append(replace(lane, steps=tuple(steps)))
    return _rebuilt(program, graph, tuple(lanes), [s for s in stretches if s.core])


def _inner(task: Task, barrier: Callable[[Task], bool]) -> bool:
    return not task.random and not barrier(task)


class _Stretch:
    """Computes and frees of one lane with nothing between them. `core` are the steps that become a piece; `outside`
    says of a buffer whether a step elsewhere, or the caller, needs it."""

    def __init__(
        self, run: Sequence[Step], graph: Graph, program: Program, outside: Callable[[str], bool]
    ) -> None:
        self.run, self.graph, self.program, self.outside = run, graph, program, outside
        self.computes = [step for step in run if isinstance(step, Compute)]
        self.front = self._front()
        self.back = self._back()
        split = {*self.front, *self.back}
        self.core = [step for step in self.computes if step not in split]
        if all(graph.task[step.task].free for step in self.core):
            self.core = []
        made = {name for step in self.core for name in step.writes}
        last = {name for step in self.back for name in step.reads}
        self.writes = tuple(
            name for step in self.core for name in step.writes if name in last or outside(name)
        )
        read = {name: None for step in self.core for name in step.reads if name not in made}
        self.reads = tuple(read)
        self.inner = made - set(self.writes)

    def steps(self) -> Iterator[Step]:
        """The steps in its place."""
        if not self.core:
            yield from self.run
            return
        yield from self.front
        yield Piece(tuple(step.task for step in self.core), self.reads, self.writes)
        yield from self.back
        yield from (step for step in self.run if isinstance(step, Free))

    def _front(self) -> list[Compute]:
        """Views of what was there before that somebody elsewhere needs, and what these are views of."""
        buffer = self.program.buffer
        made = {name for step in self.computes for name in step.writes}
        views: dict[str, Compute] = {}
        for step in self.computes:
            if self.graph.task[step.task].free and all(buffer[n].storage not in made for n in step.writes):
                views.update(dict.fromkeys(step.writes, step))
        wanted: set[str] = set()
        todo = [name for name in views if self.outside(name)]
        while todo:
            step = views[todo.pop()]
            if step.task not in wanted:
                wanted.add(step.task)
                todo += [name for name in step.reads if name in views]
        return [step for step in self.computes if step.task in wanted]

    def _back(self) -> list[Compute]:
        """Views at the end which no task of the stretch needs."""
        first = {step.task for step in self.front}
        needed: set[str] = set()
        found = []
        for step in reversed(self.computes):
            late = self.graph.task[step.task].free and needed.isdisjoint(step.writes)
            if late and step.task not in first and any(map(self.outside, step.writes)):
                found.append(step)
            elif step.task not in first:
                needed.update(step.reads)
        return found[::-1]

    def peak(self, scratch: dict[str, int]) -> int:
        """Bytes of what is made inside and not written, at most at one time as the steps were."""
        buffer, held, most = self.program.buffer, 0, 0
        for step in self.run:
            for name in step.writes if isinstance(step, Compute) else ():
                held += buffer[name].bytes * (name in self.inner and buffer[name].storage == name)
            most = max(most, held + (scratch.get(step.task, 0) if isinstance(step, Compute) else 0))
            if isinstance(step, Free):
                held -= buffer[step.buffer].bytes * (
                    step.buffer in self.inner and buffer[step.buffer].storage == step.buffer
                )
        return most


def _rebuilt(
    program: Program, graph: Graph, lanes: tuple[Lane, ...], stretches: Sequence[_Stretch]
) -> Program:
    """The program without the buffers inside of pieces. What a piece writes is memory of its own, and so are the roots
    of its views."""
    inner: set[str] = {name for stretch in stretches for name in stretch.inner}
    written = {name for stretch in stretches for name in stretch.writes}
    roots: dict[str, str] = {}
    made: dict[str, Buffer] = {}
    for lane in lanes:
        for step in lane.steps:
            if isinstance(step, Compute):
                lent = {graph.value[program.buffer[n].value].storage: n for n in step.reads}
                for name in step.writes:
                    roots[name] = lent.get(graph.value[program.buffer[name].value].storage, name)
    for name in written:
        roots[name] = name
    for buffer in program.buffers:
        if buffer.name not in inner:
            made[buffer.name] = replace(buffer, storage=_root(buffer.name, roots, program, written))
    # The free of what is inside of a piece may be far behind it, where a view of it was freed late.
    lanes = tuple(
        replace(lane, steps=tuple(s for s in lane.steps if not (isinstance(s, Free) and s.buffer in inner)))
        for lane in lanes
    )
    old = dict(program.workspace)
    whole = {stretch.core[0].task: stretch.peak(old) for stretch in stretches}
    inside = {step.task for stretch in stretches for step in stretch.core}
    scratch = {**{task: count for task, count in old.items() if task not in inside}, **whole}
    return replace(
        program, lanes=lanes, buffers=tuple(made.values()), workspace=tuple((t, c) for t, c in scratch.items() if c)
    )  # fmt: skip


def _root(name: str, roots: dict[str, str], program: Program, written: Collection[str]) -> str:
    """The buffer in whose memory another one lies."""
    while name not in written and program.buffer[name].storage != name:
        step = roots.get(name, name)
        if step == name:
            return program.buffer[name].storage
        name = step
    return name
