"""Happens-before requirements of a program: pairs of steps of which one must follow the other, with reasons.

`demands` derives those of the program alone and refuses what no order can fix: a buffer on the wrong device, made
twice, never made, freed twice, never freed. `matches` derives those of the graph, `turns` the order of random draws
from the generator of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from ..errors import ProgramError
from ..ir.graph import LOCAL, Graph, Task
from ..ir.program import Buffer, Compute, Copy, Free, Piece, Program, tasks_of

At: TypeAlias = tuple[int, int]
"""A step: index of its lane in the program, position in the lane."""
Demand: TypeAlias = tuple[At, At, str]
"""Requirement that the first step ends before the second one starts, and the reason."""
_BEFORE = ("given", "resident")
"""Kinds of buffers that exist before the call."""


def demands(program: Program) -> list[Demand]:
    """Return happens-before requirements of the program alone. Raises ProgramError for errors in any order."""
    if problem := next(_header(program), None):
        raise ProgramError(problem)
    uses = _Uses(program)
    return [demand for buffer in program.buffers for demand in uses.lifetime(buffer)]


def describe(program: Program, at: At) -> str:
    """Return a step as text for messages: number, lane and what it does."""
    return program.lanes[at[0]].describe(at[1])


def wrong(program: Program, at: At, text: str) -> ProgramError:
    """Return the error for one step."""
    return ProgramError(f"{describe(program, at)}: {text}")


def _header(program: Program) -> Iterator[str]:
    """Yield what is wrong with the buffers, results and kept copies of a program, whatever its steps do."""
    if len(program.buffer) != len(program.buffers):
        yield "two buffers share a name; each is named value@device"
    if len(program.lane) != len(program.lanes):
        yield "two lanes share a name; give each queue its own"
    for buffer in program.buffers:
        root = program.buffer.get(buffer.storage)
        if root is None:
            yield f"buffer {buffer.name} shares the storage of {buffer.storage!r}, which is not a buffer"
        elif root.storage != root.name:
            yield f"buffer {buffer.name} must name {root.storage}, which owns the storage, not {root.name}"
        elif root.device != buffer.device:
            yield f"buffer {buffer.name} on {buffer.device} cannot share storage with {root.name}"
        elif buffer.kind in _BEFORE and root.kind not in _BEFORE:
            yield f"buffer {buffer.name} is there before the call, its storage {root.name} is not"
    for name in program.results:
        if name not in program.buffer:
            yield f"the result {name!r} is not a buffer of the program"
        elif program.buffer[name].kind == "made":
            yield f"the result {name} is of kind made, which is freed; it must be of kind result"
    keeps: dict[tuple[str, str], str] = {}
    for name, state in program.keeps:
        buffer = program.buffer[name]
        if program.buffer[buffer.storage].kind in _BEFORE:
            yield (
                f"{name} is kept as the copy of {state} on {buffer.device}, but it is memory that was there "
                "before the call; keep a buffer of its own"
            )
        other = keeps.setdefault((state, buffer.device), name)
        if other != name:
            yield f"both {other} and {name} are kept as the copy of {state} on {buffer.device}"


class _Uses:
    """The steps that make, read and free each buffer of a program, and the views of each."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.maker: dict[str, At] = {}
        self.freed: dict[str, At] = {}
        self.read: dict[str, list[At]] = {buffer.name: [] for buffer in program.buffers}
        self.views: dict[str, list[str]] = {buffer.name: [] for buffer in program.buffers}
        tasks: set[str] = set()
        for at, step in program.steps():
            if isinstance(step, Compute | Piece):
                for task in tasks_of(step):
                    if task in tasks:
                        raise self.wrong(at, f"task {task!r} has run before; each runs once")
                    tasks.add(task)
                self.compute(at, step)
            elif isinstance(step, Copy):
                self.copy(at, step)
            elif isinstance(step, Free):
                self.free(at, self.known(at, step.buffer))

    def wrong(self, at: At, text: str) -> ProgramError:
        return wrong(self.program, at, text)

    def known(self, at: At, name: str) -> Buffer:
        if name not in self.program.buffer:
            raise self.wrong(at, f"{name!r} is not a buffer of the program")
        return self.program.buffer[name]

    def write(self, at: At, buffer: Buffer) -> None:
        if buffer.kind in _BEFORE:
            raise self.wrong(
                at, f"buffer {buffer.name} is {buffer.kind}: it is there before the call and not made in it"
            )
        if first := self.maker.get(buffer.name):
            where = describe(self.program, first)
            raise self.wrong(at, f"buffer {buffer.name} is made twice; {where} makes it too")
        self.maker[buffer.name] = at

    def free(self, at: At, buffer: Buffer) -> None:
        if buffer.kind != "made":
            raise self.wrong(at, f"buffer {buffer.name} is {buffer.kind}, which a program never frees")
        if first := self.freed.get(buffer.name):
            where = describe(self.program, first)
            raise self.wrong(at, f"buffer {buffer.name} is freed twice; {where} has freed it")
        self.freed[buffer.name] = at

    def compute(self, at: At, step: Compute | Piece) -> None:
        device = self.program.lanes[at[0]].device
        reads = [self.known(at, name) for name in step.reads]
        writes = [self.known(at, name) for name in step.writes]
        for buffer in (*reads, *writes):
            if buffer.device != device:
                raise self.wrong(
                    at, f"it runs on {device}, but buffer {buffer.name} is on {buffer.device}; copy it first"
                )
        for buffer in reads:
            self.read[buffer.name].append(at)
        # The kernel of a piece never returns memory of its inputs.
        storages = {buffer.name for buffer in writes}
        if isinstance(step, Compute):
            storages |= {buffer.storage for buffer in reads}
        for buffer in writes:
            self.write(at, buffer)
            if buffer.storage not in storages:
                raise self.wrong(
                    at, f"buffer {buffer.name} shares storage with {buffer.storage}, which it does not read"
                )
            if buffer.storage != buffer.name:
                sources = [other.name for other in reads if other.storage == buffer.storage]
                for name in sources or [buffer.storage]:
                    self.views[name].append(buffer.name)

    def copy(self, at: At, step: Copy) -> None:
        lane, src, dst = self.program.lanes[at[0]].name, self.known(at, step.src), self.known(at, step.dst)
        if src.device == dst.device:
            raise self.wrong(at, f"{src.name} and {dst.name} are on one device; a copy goes between two")
        if src.value != dst.value:
            raise self.wrong(at, f"a copy of {src.value!r} cannot be {dst.value!r}")
        lanes = f"{dst.device}/in", f"{src.device}/out"
        if lane not in lanes:
            raise self.wrong(at, f"copy {src.name} -> {dst.name} belongs in lane {' or '.join(lanes)}")
        if dst.storage != dst.name:
            raise self.wrong(at, f"{dst.name} is a copy, so it cannot share storage with {dst.storage}")
        self.read[src.name].append(at)
        self.write(at, dst)

    def lifetime(self, buffer: Buffer) -> Iterator[Demand]:
        """Yield requirements of a buffer: reads after its write; free after every use and every free of a view, in
        its lane.

        A view may have memory of its own, which the lane that made it allocated. Otherwise the owner of the memory is
        freed after the view, by a lane that follows all of the view's readers.
        """
        if buffer.kind in _BEFORE:
            return
        name, readers = buffer.name, self.read[buffer.name]
        first, freed = self.maker.get(name), self.freed.get(name)
        if first is None:
            if readers:
                raise self.wrong(
                    readers[0], f"it reads buffer {name}, which no step makes; a copy is missing"
                )
            if freed:
                raise self.wrong(freed, f"it frees buffer {name}, which no step makes")
            raise ProgramError(f"no step makes buffer {name} of kind {buffer.kind}")
        for at in readers:
            yield first, at, f"reads {name}"
        if buffer.kind == "result":
            return
        lane = self.program.lanes[first[0]].name
        if freed is None:
            raise ProgramError(f"buffer {name}, made by step {first[1]} of lane {lane}, is never freed")
        if first[0] != freed[0]:
            raise self.wrong(freed, f"it frees buffer {name}, which lane {lane} made; free it there")
        for at in (first, *readers):
            yield at, freed, f"frees {name}"
        for view in self.views[name]:
            if view in self.freed:
                yield self.freed[view], freed, f"frees {name}, of which {view} is a view"


def matches(program: Program, graph: Graph) -> list[Demand]:
    """Return happens-before requirements for the program to compute `graph`. Raises ProgramError if it computes
    anything else."""
    at = {task: place for place, step in program.steps() for task in tasks_of(step)}
    for name in at:
        if name not in graph.task:
            raise wrong(program, at[name], f"the graph has no task {name!r}")
    if problem := next(_values(program, graph), None):
        raise ProgramError(problem)
    demands: list[Demand] = []
    for task in graph.tasks:
        if task.name not in at:
            raise ProgramError(f"no lane runs {task.where}")
        here = at[task.name]
        step, problem = program.lanes[here[0]].steps[here[1]], None
        if isinstance(step, Compute):
            problem = next(_task(program, graph, task, step), None)
        elif isinstance(step, Piece) and step.tasks[0] == task.name:
            problem = next(_piece(program, graph, step), None)
        if problem:
            raise wrong(program, here, problem)
        demands += [
            (at[name], here, f"must come after task {name!r}") for name in task.after if at[name] != here
        ]
    return demands


def turns(program: Program, graph: Graph, order: Iterable[At]) -> list[Demand]:
    """Return requirements that fix the random draws on each device to their order in `order`, a valid order of the
    steps."""
    last: dict[str, At] = {}
    demands: list[Demand] = []
    for at in order:
        lane = program.lanes[at[0]]
        step = lane.steps[at[1]]
        if not isinstance(step, Compute) or graph.task[step.task].random != LOCAL:
            continue
        if lane.device in last:
            demands.append((last[lane.device], at, f"draws from the generator of {lane.device} next"))
        last[lane.device] = at
    return demands


def _values(program: Program, graph: Graph) -> Iterator[str]:
    """Yield how results, updates, buffers or kept copies of state differ from those of the graph."""
    outputs = tuple(program.buffer[name].value for name in program.outputs)
    if outputs != graph.outputs:
        yield f"the program gives {', '.join(outputs)}, the graph {', '.join(graph.outputs)}"
    updates = tuple((program.buffer[new].value, target) for new, target in program.updates)
    if updates != graph.updates:
        yield f"the program writes back {updates}, the graph {graph.updates}"
    for buffer in program.buffers:
        yield from _buffer(buffer, graph)
    yield from _keeps(program, graph)


def _buffer(buffer: Buffer, graph: Graph) -> Iterator[str]:
    name, kind, value = buffer.name, buffer.kind, graph.value.get(buffer.value)
    if value is None:
        yield f"buffer {name} holds {buffer.value!r}, which is not a value of the graph"
        return
    resident = kind == "resident" and value.name in graph.copies
    nbytes = graph.copies[value.name][1] if resident else value.bytes
    if buffer.bytes != nbytes:
        yield f"buffer {name} has {buffer.bytes} bytes, its value {nbytes}"
    if (kind == "given" and value.kind == "made") or (kind == "resident" and value.kind != "state"):
        yield f"buffer {name} is {kind}, but its value is {value.kind}"
    if kind == "resident" and value.name not in graph.resident:
        yield f"buffer {name} is resident, but {value.name!r} changes in or between calls; copy it instead"


def _keeps(program: Program, graph: Graph) -> Iterator[str]:
    """Yield copies of state that a call makes outdated without replacing them by the new value, and copies
    that it keeps needlessly."""
    new = {target: new_value for new_value, target in graph.updates if target in graph.carried}
    pairs = {(state, program.buffer[name].device) for name, state in program.keeps}
    wanted: set[tuple[str, str]] = set()
    for buffer in program.buffers:
        # A copy of changing state is kept for the next call; a resident copy whose state is updated must be
        # replaced.
        if (buffer.kind == "resident" and buffer.value in new) or (
            buffer.kind != "given" and buffer.value in graph.refreshed
        ):
            wanted.add((buffer.value, buffer.device))
            if (buffer.value, buffer.device) not in pairs:
                yield (
                    f"{buffer.name} is out of date after the call, but the program keeps no new copy of "
                    f"{buffer.value!r} on {buffer.device}; bring it there and list it in keeps"
                    if buffer.kind == "resident"
                    else f"{buffer.name} is a copy of what changes between calls; list it in keeps"
                )
    for name, state in program.keeps:
        buffer = program.buffer[name]
        if buffer.value != (state if state in graph.refreshed else new.get(state)):
            yield f"{name} is kept as the copy of {state!r}, which it is not a new value of"
        if (state, buffer.device) not in wanted:
            yield f"{name} is kept as the copy of {state!r}, of which {buffer.device} has none"


def _task(program: Program, graph: Graph, task: Task, step: Compute) -> Iterator[str]:
    """Yield how a step differs from its task."""
    reads = tuple(program.buffer[name].value for name in step.reads)
    writes = tuple(program.buffer[name].value for name in step.writes)
    if reads != task.inputs:
        yield f"it reads {_names(reads)}, the task {_names(task.inputs)}"
    if writes != task.outputs:
        yield f"it makes {_names(writes)}, the task {_names(task.outputs)}"
    roots = {
        graph.value[value].storage: program.buffer[name].storage for value, name in zip(reads, step.reads)
    }
    for value, name in zip(writes, step.writes):
        root = roots.get(graph.value[value].storage)
        if root is not None and program.buffer[name].storage != root:
            yield f"buffer {name} is a view into {root}, but is said to have its own storage"


def _piece(program: Program, graph: Graph, step: Piece) -> Iterator[str]:
    """Yield tasks of a piece that do not follow their inputs, and differences between the piece and its tasks
    in what they read and make."""
    inner: set[str] = set()
    read: dict[str, None] = {}
    earlier: set[str] = set()
    for name in step.tasks:
        task = graph.task[name]
        late = [other for other in task.after if other in step.tasks and other not in earlier]
        if late or task.random:
            why = f"comes before {late[0]!r}, which it must follow" if late else "draws random numbers"
            yield f"task {name!r} {why}"
        read.update(dict.fromkeys(value for value in task.inputs if value not in inner))
        inner.update(task.outputs)
        earlier.add(name)
    if early := inner & read.keys():
        yield f"{min(early)!r} is read before the task that makes it"
    reads = tuple(program.buffer[name].value for name in step.reads)
    if set(reads) != read.keys() or len(set(reads)) != len(reads):
        yield f"it reads {_names(reads)}, its tasks {', '.join(read)}"
    for name in step.writes:
        if program.buffer[name].value not in inner:
            yield f"none of its tasks makes {program.buffer[name].value!r}"


def _names(values: Sequence[str]) -> str:
    return ", ".join(values) or "nothing"
