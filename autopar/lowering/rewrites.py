"""Rewrites of a proved program: steps are fused into pieces, and large weights updated in their own memory.

Each maximal run of a lane's steps between hand-offs becomes a `Piece` (`pieced`). A piece reads at its start
and writes at its end, so no step of another lane has to run in between. What holds for the program thus holds
for the new one, and `check` proves it again. A kernel never returns memory of its inputs. Views of values
from outside therefore stay separate steps before a piece, and views of its results after it, if no task in it
needs them. Steps that stay eager (`barrier`) end a run.

If a program has one lane, it updates large weights last, in their own memory (`overwriting`). A second buffer
for each new value, which is copied over the old one, would move the bytes of the weights twice as often as
`optimizer.step()` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ..ir.graph import Graph, Task
from ..ir.program import Compute, Free, Lane, Piece, Program, Step, reads
from .memory_bound import fits


def pieced(program: Program, graph: Graph, barrier: Callable[[Task], bool]) -> Program:
    """Replace each run of steps by a piece if one of its tasks moves data. Linear in steps.

    Tasks that draw random numbers, and those that `barrier` excludes, stay separate steps.
    """
    readers: dict[str, set[int]] = {}
    for number, step in enumerate(step for lane in program.lanes for step in lane.steps):
        for name in reads(step):
            readers.setdefault(name, set()).add(number)
    results, number, lanes = frozenset(program.results), 0, []
    stretches: list[_Stretch] = []

    def fusible(step: Step) -> bool:
        if isinstance(step, Compute):
            task = graph.task[step.task]
            return not task.random and not barrier(task)
        return isinstance(step, Free)

    for lane in program.lanes:
        steps: list[Step] = []
        for fused, group in groupby(lane.steps, fusible):
            run = list(group)
            numbers = range(number, number + len(run))
            number = numbers.stop
            if not fused:
                steps += run
                continue

            def outside(name: str, numbers: range = numbers) -> bool:
                return name in results or any(reader not in numbers for reader in readers.get(name, ()))

            stretches.append(_Stretch(run, graph, program, outside))
            steps.extend(stretches[-1].steps())
        lanes.append(replace(lane, steps=tuple(steps)))
    return _rebuilt(program, graph, tuple(lanes), [s for s in stretches if s.core])


class _Stretch:
    """A run of computes and frees on one lane. `core`: steps that become a piece. `outside`: True if another step,
    or the caller, needs a buffer."""

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
        writes = {name for step in self.core for name in step.writes}
        last = {name for step in self.back for name in step.reads}
        self.writes = tuple(
            name for step in self.core for name in step.writes if name in last or outside(name)
        )
        read = {name: None for step in self.core for name in step.reads if name not in writes}
        self.reads = tuple(read)
        self.inner = writes - set(self.writes)

    def steps(self) -> Iterator[Step]:
        """Yield the steps that replace the run."""
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
        writes = {name for step in self.computes for name in step.writes}
        views: dict[str, Compute] = {}
        for step in self.computes:
            if self.graph.task[step.task].free and all(buffer[n].storage not in writes for n in step.writes):
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
        tail = []
        for step in reversed(self.computes):
            last = self.graph.task[step.task].free and needed.isdisjoint(step.writes)
            if last and step.task not in first and any(map(self.outside, step.writes)):
                tail.append(step)
            elif step.task not in first:
                needed.update(step.reads)
        return tail[::-1]

    def peak(self, scratch: dict[str, int]) -> int:
        """Return the peak bytes of values internal to the piece, in the original order of steps."""
        buffers = (self.program.buffer[name] for name in self.inner)
        sizes = {buffer.name: buffer.bytes for buffer in buffers if buffer.storage == buffer.name}
        level = most = 0
        for step in self.run:
            if isinstance(step, Compute):
                level += sum(sizes.get(name, 0) for name in step.writes)
                most = max(most, level + scratch.get(step.task, 0))
            elif isinstance(step, Free):
                level -= sizes.get(step.buffer, 0)
        return most


def _rebuilt(
    program: Program, graph: Graph, lanes: tuple[Lane, ...], stretches: Sequence[_Stretch]
) -> Program:
    """Return the program without buffers internal to pieces. The outputs of a piece own their memory, which
    their views share."""
    inner = {name for stretch in stretches for name in stretch.inner}
    written = {name for stretch in stretches for name in stretch.writes}
    lender: dict[str, str] = {}
    for lane in lanes:
        for step in lane.steps:
            if isinstance(step, Compute):
                owners = {graph.value[program.buffer[n].value].storage: n for n in step.reads}
                for name in step.writes:
                    lender[name] = owners.get(graph.value[program.buffer[name].value].storage, name)

    def root(name: str) -> str:
        """Return the buffer whose memory contains another one."""
        while name not in written and program.buffer[name].storage != name:
            if lender.get(name, name) == name:
                return program.buffer[name].storage
            name = lender[name]
        return name

    # An internal buffer may be freed far behind its piece, if a view of it was freed late.
    lanes = tuple(
        replace(lane, steps=tuple(s for s in lane.steps if not (isinstance(s, Free) and s.buffer in inner)))
        for lane in lanes
    )
    inside = {step.task for stretch in stretches for step in stretch.core}
    scratch = dict(program.workspace)
    peaks = ((stretch.core[0].task, stretch.peak(scratch)) for stretch in stretches)
    return replace(
        program,
        lanes=lanes,
        buffers=tuple(replace(b, storage=root(b.name)) for b in program.buffers if b.name not in inner),
        workspace=(
            *((task, count) for task, count in program.workspace if task not in inside and count),
            *((task, count) for task, count in peaks if count),
        ),
    )


def overwriting(program: Program, graph: Graph, able: Callable[[Task], bool]) -> Program:
    """Let `able` tasks of a program's only lane overwrite the values that they update, after all its other steps, so
    that a failure before them changes nothing.

    A task takes part if its new values go only to `Program.updates`, and if no output shares memory with the
    old ones. The program stays as it is if it has several lanes or keeps copies, or if a memory cap would not
    hold, since gradients are freed later than before. Linear in steps.
    """
    if len(program.lanes) != 1 or program.keeps:
        return program
    (lane,) = program.lanes
    buffer = program.buffer
    target = {new: f"{state}@{lane.device}" for new, state in program.updates}
    read = {name for step in lane.steps for name in reads(step)}
    returned = {buffer[name].storage for name in program.outputs}
    awaited = {name for task in graph.tasks for name in task.after}

    def replaces(step: Compute, new: str) -> bool:
        """Return True if a new value can take the memory of the old one."""
        old = target.get(new)
        return (
            old in step.reads
            and buffer[old].kind == "given"
            and buffer[old].storage == old
            and not {old, new} & returned
            and new not in read
        )

    candidates = {
        step.task: step
        for step in lane.steps
        if isinstance(step, Compute)
        and step.task not in awaited
        and able(graph.task[step.task])
        and all(replaces(step, new) for new in step.writes)
    }
    readers = Counter(buffer[name].storage for step in candidates.values() for name in step.reads)
    # A candidate drops out if another one reads its old value too.
    last = {
        task: step
        for task, step in candidates.items()
        if all(readers[target[new]] == 1 for new in step.writes)
    }
    awaiting = {buffer[name].storage for step in last.values() for name in step.reads}

    def later(step: Step) -> bool:
        if isinstance(step, Free):
            return buffer[step.buffer].storage in awaiting
        return isinstance(step, Compute) and step.task in last

    steps = (*(step for step in lane.steps if not later(step)), *filter(later, lane.steps))
    memory = {new: target[new] for step in last.values() for new in step.writes}
    changed = replace(
        program,
        lanes=(replace(lane, steps=steps),),
        buffers=tuple(replace(each, storage=memory.get(each.name, each.storage)) for each in program.buffers),
    )
    return changed if last and fits(changed) else program
