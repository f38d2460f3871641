"""Fusion of a proved program's steps into pieces: each maximal run of a lane's steps between hand-offs becomes a
`Piece`.

A piece reads at its start and writes at its end, so that no step of another lane comes in between: what holds for the
program holds for the new one, and `check` proves it again. A kernel never returns memory that it was given. So views
of values from outside stay separate steps before it, and views of its results after it, if nothing in it needs them.
Steps that stay eager (`barrier`) end a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from ..ir.graph import Graph, Task
from ..ir.program import Buffer, Compute, Free, Lane, Piece, Program, Step, reads


def pieced(program: Program, graph: Graph, barrier: Callable[[Task], bool]) -> Program:
    """Replace each run of steps with at least one task that moves data by a piece. Linear in steps.

    Tasks that draw random numbers, and those that `barrier` excludes, stay separate steps.
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
    """A run of computes and frees on one lane. `core`: steps that become a piece. `outside`: whether another step, or
    the caller, needs a buffer."""

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
        """Yield the steps that replace it."""
        if not self.core:
            yield from self.run
            return
        yield from self.front
        yield Piece(tuple(step.task for step in self.core), self.reads, self.writes)
        yield from self.back
        yield from (step for step in self.run if isinstance(step, Free))

    def _front(self) -> list[Compute]:
        """Return views of earlier values that are needed elsewhere, with the views they are based on."""
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
        """Return views at the end that no task of the run needs."""
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
        """Return the peak bytes of values internal to the piece, in the original order of steps."""
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
    """Return the program without buffers internal to pieces. A piece's outputs have memory of their own, and so have
    the roots of its views."""
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
    """Return the buffer whose memory contains another one."""
    while name not in written and program.buffer[name].storage != name:
        step = roots.get(name, name)
        if step == name:
            return program.buffer[name].storage
        name = step
    return name
