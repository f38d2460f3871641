"""Happens-before requirements of a program: pairs of steps of which one must follow the other, with reasons.

`demands` derives those of the program alone and refuses what no order can fix: a buffer on the wrong device, made
twice, never made, freed twice, never freed. `matches` derives those of the graph, `turns` the order of random draws
from the generator of one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ..errors import ProgramError
from ..ir.graph import LOCAL, Graph, Task
from ..ir.program import Buffer, Compute, Copy, Free, Piece, Program, tasks_of

At: TypeAlias = tuple[int, int]
"""A step: index of its lane in the program, position in the lane."""


class Demand(NamedTuple):
    """Requirement that step `earlier` ends before step `later` starts; `why` is the reason."""

    earlier: At
    later: At
    why: str


class _Use:
    """The steps that use one buffer."""

    __slots__ = ("freed", "made", "read", "views")

    def __init__(self) -> None:
        self.made: At | None = None
        self.views: list[str] = []
        self.read: list[At] = []
        self.freed: At | None = None


def demands(program: Program) -> list[Demand]:
    """Return happens-before requirements of the program alone. Raises ProgramError for errors in any order."""
    _header(program)
    uses = {buffer.name: _Use() for buffer in program.buffers}
    tasks: set[str] = set()
    for at, step in program.steps():
        if isinstance(step, Compute | Piece):
            for task in tasks_of(step):
                if task in tasks:
                    raise wrong(program, at, f"task {task!r} has run before; each runs once")
                tasks.add(task)
            _compute(program, at, step, uses)
        elif isinstance(step, Copy):
            _copy(program, at, step, uses)
        elif isinstance(step, Free):
            buffer = _known(program, at, step.buffer)
            if buffer.kind != "made":
                raise wrong(
                    program, at, f"buffer {buffer.name} is {buffer.kind}, which a program never frees"
                )
            first = uses[buffer.name].freed
            if first:
                where = describe(program, first)
                raise wrong(program, at, f"buffer {buffer.name} is freed twice; {where} has freed it")
            uses[buffer.name].freed = at
    found: list[Demand] = []
    for buffer in program.buffers:
        found += _lifetime(program, buffer, uses)
    return found


def describe(program: Program, at: At) -> str:
    """Return a step as text for messages: number, lane and what it does."""
    return program.lanes[at[0]].describe(at[1])


def wrong(program: Program, at: At, text: str) -> ProgramError:
    """Return the error for one step."""
    return ProgramError(f"{describe(program, at)}: {text}")


def _header(program: Program) -> None:
    if len(program.buffer) != len(program.buffers):
        raise ProgramError("two buffers share a name; each is named value@device")
    if len(program.lane) != len(program.lanes):
        raise ProgramError("two lanes share a name; give each queue its own")
    for buffer in program.buffers:
        root = program.buffer.get(buffer.storage)
        if root is None:
            raise ProgramError(
                f"buffer {buffer.name} shares the storage of {buffer.storage!r}, which is no buffer"
            )
        if root.storage != root.name:
            raise ProgramError(
                f"buffer {buffer.name} must name {root.storage}, which owns the storage, not {root.name}"
            )
        if root.device != buffer.device:
            raise ProgramError(
                f"buffer {buffer.name} on {buffer.device} cannot share storage with {root.name}"
            )
        if buffer.kind in ("given", "resident") and root.kind in ("made", "result"):
            raise ProgramError(
                f"buffer {buffer.name} is there before the call, its storage {root.name} is not"
            )
    for name in program.results:
        if name not in program.buffer:
            raise ProgramError(f"the result {name!r} is no buffer of the program")
        if program.buffer[name].kind == "made":
            raise ProgramError(
                f"the result {name} is of kind made, which is freed; it must be of kind result"
            )
    keeps: dict[tuple[str, str], str] = {}
    for name, state in program.keeps:
        buffer = program.buffer[name]
        if program.buffer[buffer.storage].kind in ("given", "resident"):
            raise ProgramError(
                f"{name} is kept as the copy of {state} on {buffer.device}, but it is memory that was there "
                "before the call; keep a buffer of its own"
            )
        other = keeps.setdefault((state, buffer.device), name)
        if other != name:
            raise ProgramError(f"both {other} and {name} are kept as the copy of {state} on {buffer.device}")


def _known(program: Program, at: At, name: str) -> Buffer:
    if name not in program.buffer:
        raise wrong(program, at, f"{name!r} is no buffer of the program")
    return program.buffer[name]


def _write(program: Program, at: At, buffer: Buffer, uses: dict[str, _Use]) -> None:
    if buffer.kind in ("given", "resident"):
        raise wrong(
            program,
            at,
            f"buffer {buffer.name} is {buffer.kind}: it is there before the call and not made in it",
        )
    first = uses[buffer.name].made
    if first:
        where = describe(program, first)
        raise wrong(program, at, f"buffer {buffer.name} is made twice; {where} makes it too")
    uses[buffer.name].made = at


def _compute(program: Program, at: At, step: Compute | Piece, uses: dict[str, _Use]) -> None:
    device = program.lanes[at[0]].device
    read = [_known(program, at, name) for name in step.reads]
    written = [_known(program, at, name) for name in step.writes]
    for buffer in (*read, *written):
        if buffer.device != device:
            raise wrong(
                program,
                at,
                f"it runs on {device}, but buffer {buffer.name} is on {buffer.device}; copy it first",
            )
    for buffer in read:
        uses[buffer.name].read.append(at)
    # A kernel of several tasks hands on no memory that it was given.
    lent = {buffer.storage for buffer in read} if isinstance(step, Compute) else set()
    storages = lent | {buffer.name for buffer in written}
    for buffer in written:
        _write(program, at, buffer, uses)
        if buffer.storage not in storages:
            raise wrong(
                program,
                at,
                f"buffer {buffer.name} shares storage with {buffer.storage}, which it does not read",
            )
        if buffer.storage != buffer.name:
            alike = [other.name for other in read if other.storage == buffer.storage]
            for name in alike or [buffer.storage]:
                uses[name].views.append(buffer.name)


def _copy(program: Program, at: At, step: Copy, uses: dict[str, _Use]) -> None:
    lane = program.lanes[at[0]]
    src, dst = _known(program, at, step.src), _known(program, at, step.dst)
    if src.device == dst.device:
        raise wrong(program, at, f"{src.name} and {dst.name} are on one device; a copy goes between two")
    if src.value != dst.value:
        raise wrong(program, at, f"a copy of {src.value!r} cannot be {dst.value!r}")
    if lane.name not in (f"{dst.device}/in", f"{src.device}/out"):
        raise wrong(
            program, at, f"copy {src.name} -> {dst.name} belongs in lane {dst.device}/in or {src.device}/out"
        )
    if dst.storage != dst.name:
        raise wrong(program, at, f"{dst.name} is a copy, so it cannot share storage with {dst.storage}")
    uses[src.name].read.append(at)
    _write(program, at, dst, uses)


def _lifetime(program: Program, buffer: Buffer, uses: dict[str, _Use]) -> list[Demand]:
    """Return requirements of a buffer: reads after its write; free after every use and every free of a view, in its
    lane.

    A view may have memory of its own, which the lane that made it allocated. Otherwise the owner of the memory is
    freed after the view, by a lane that follows all of the view's readers.
    """
    use = uses[buffer.name]
    if buffer.kind in ("given", "resident"):
        return []
    if use.made is None:
        if use.read:
            raise wrong(
                program, use.read[0], f"it reads buffer {buffer.name}, which no step makes; a copy is missing"
            )
        if use.freed:
            raise wrong(program, use.freed, f"it frees buffer {buffer.name}, which no step makes")
        raise ProgramError(f"no step makes buffer {buffer.name} of kind {buffer.kind}")
    found = [Demand(use.made, at, f"reads {buffer.name}") for at in use.read]
    if buffer.kind == "result":
        return found
    made = program.lanes[use.made[0]].name
    if use.freed is None:
        raise ProgramError(f"buffer {buffer.name}, made by step {use.made[1]} of lane {made}, is never freed")
    if use.made[0] != use.freed[0]:
        raise wrong(
            program, use.freed, f"it frees buffer {buffer.name}, which lane {made} made; free it there"
        )
    found += [Demand(at, use.freed, f"frees {buffer.name}") for at in (use.made, *use.read)]
    for name in use.views:
        if at := uses[name].freed:
            found.append(Demand(at, use.freed, f"frees {buffer.name}, of which {name} is a view"))
    return found


# What the graph adds
# -------------------------------------------------------------------------------------------------


def matches(program: Program, graph: Graph) -> list[Demand]:
    """Return happens-before requirements for the program to compute `graph`. Raises ProgramError if it computes
    anything else."""
    at = {task: place for place, step in program.steps() for task in tasks_of(step)}
    for name in at:
        if name not in graph.task:
            raise wrong(program, at[name], f"the graph has no task {name!r}")
    outputs = tuple(program.buffer[name].value for name in program.outputs)
    if outputs != graph.outputs:
        raise ProgramError(f"the program gives {', '.join(outputs)}, the graph {', '.join(graph.outputs)}")
    updates = tuple((program.buffer[made].value, target) for made, target in program.updates)
    if updates != graph.updates:
        raise ProgramError(f"the program writes back {updates}, the graph {graph.updates}")
    for buffer in program.buffers:
        _buffer(buffer, graph)
    _keeps(program, graph)
    found: list[Demand] = []
    for task in graph.tasks:
        if task.name not in at:
            raise ProgramError(f"no lane runs {task.where}")
        step = program.lanes[at[task.name][0]].steps[at[task.name][1]]
        if isinstance(step, Compute):
            _task(program, graph, task, at[task.name], step)
        elif isinstance(step, Piece) and step.tasks[0] == task.name:
            _piece(program, graph, at[task.name], step)
        found += [
            Demand(at[name], at[task.name], f"must come after task {name!r}")
            for name in task.after
            if at[name] != at[task.name]
        ]
    return found


def turns(program: Program, graph: Graph, order: Iterable[At]) -> list[Demand]:
    """Return requirements that fix the random draws on each device to their order in `order`, a valid order of the
    steps."""
    last: dict[str, At] = {}
    found: list[Demand] = []
    for at in order:
        lane = program.lanes[at[0]]
        step = lane.steps[at[1]]
        if not isinstance(step, Compute) or graph.task[step.task].random != LOCAL:
            continue
        if lane.device in last:
            found.append(Demand(last[lane.device], at, f"draws from the generator of {lane.device} next"))
        last[lane.device] = at
    return found


def _buffer(buffer: Buffer, graph: Graph) -> None:
    value = graph.value.get(buffer.value)
    if value is None:
        raise ProgramError(f"buffer {buffer.name} holds {buffer.value!r}, which is no value of the graph")
    nbytes = (
        graph.copies[value.name][1]
        if buffer.kind == "resident" and value.name in graph.copies
        else value.bytes
    )
    if buffer.bytes != nbytes:
        raise ProgramError(f"buffer {buffer.name} has {buffer.bytes} bytes, its value {nbytes}")
    if (buffer.kind == "given" and value.kind == "made") or (
        buffer.kind == "resident" and value.kind != "state"
    ):
        raise ProgramError(f"buffer {buffer.name} is {buffer.kind}, but its value is {value.kind}")
    if buffer.kind == "resident" and value.name not in graph.resident:
        raise ProgramError(
            f"buffer {buffer.name} is resident, but {value.name!r} changes in or between calls; copy it instead"
        )


def _keeps(program: Program, graph: Graph) -> None:
    """Require that each copy of state that a call makes outdated is replaced by the new value of the same state."""
    new = {target: made for made, target in graph.updates if target in graph.carried}
    kept = {(state, program.buffer[name].device) for name, state in program.keeps}
    wanted: set[tuple[str, str]] = set()
    for buffer in program.buffers:
        # A copy of what changes between calls is there for the next one; a resident whose state is updated must be
        # replaced.
        if (buffer.kind == "resident" and buffer.value in new) or (
            buffer.kind != "given" and buffer.value in graph.kept
        ):
            wanted.add((buffer.value, buffer.device))
            if (buffer.value, buffer.device) not in kept:
                raise ProgramError(
                    f"{buffer.name} is out of date after the call, but the program keeps no new copy of "
                    f"{buffer.value!r} on {buffer.device}; bring it there and list it in keeps"
                    if buffer.kind == "resident"
                    else f"{buffer.name} is a copy of what changes between calls; list it in keeps"
                )
    for name, state in program.keeps:
        buffer = program.buffer[name]
        if buffer.value != (state if state in graph.kept else new.get(state)):
            raise ProgramError(f"{name} is kept as the copy of {state!r}, which it is not a new value of")
        if (state, buffer.device) not in wanted:
            raise ProgramError(f"{name} is kept as the copy of {state!r}, of which {buffer.device} has none")


def _task(program: Program, graph: Graph, task: Task, at: At, step: Compute) -> None:
    reads = tuple(program.buffer[name].value for name in step.reads)
    writes = tuple(program.buffer[name].value for name in step.writes)
    if reads != task.inputs:
        raise wrong(
            program,
            at,
            f"it reads {', '.join(reads) or 'nothing'}, the task {', '.join(task.inputs) or 'nothing'}",
        )
    if writes != task.outputs:
        raise wrong(
            program,
            at,
            f"it makes {', '.join(writes) or 'nothing'}, the task {', '.join(task.outputs) or 'nothing'}",
        )
    roots = {
        graph.value[value].storage: program.buffer[name].storage for value, name in zip(reads, step.reads)
    }
    for value, name in zip(writes, step.writes):
        root = roots.get(graph.value[value].storage)
        if root is not None and program.buffer[name].storage != root:
            raise wrong(
                program, at, f"buffer {name} is a view into {root}, but is said to have its own storage"
            )


def _piece(program: Program, graph: Graph, at: At, step: Piece) -> None:
    """Require that the tasks of a piece follow their inputs, and that the piece reads what they do not make
    themselves."""
    made: set[str] = set()
    read: dict[str, None] = {}
    done: set[str] = set()
    for name in step.tasks:
        if name not in graph.task:
            raise wrong(program, at, f"the graph has no task {name!r}")
        task = graph.task[name]
        late = [other for other in task.after if other in step.tasks and other not in done]
        if late or task.random:
            why = f"comes before {late[0]!r}, which it must follow" if late else "draws random numbers"
            raise wrong(program, at, f"task {name!r} {why}")
        read.update(dict.fromkeys(value for value in task.inputs if value not in made))
        made.update(task.outputs)
        done.add(name)
    if early := made & read.keys():
        raise wrong(program, at, f"{min(early)!r} is read before the task that makes it")
    reads = tuple(program.buffer[name].value for name in step.reads)
    if set(reads) != read.keys() or len(set(reads)) != len(reads):
        raise wrong(program, at, f"it reads {', '.join(reads) or 'nothing'}, its tasks {', '.join(read)}")
    for name in step.writes:
        if program.buffer[name].value not in made:
            raise wrong(program, at, f"none of its tasks makes {program.buffer[name].value!r}")
