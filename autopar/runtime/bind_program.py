"""A program as a Python function for each lane: its backend, callables, clock and generated code.

The code of a lane is one function `lane(s, d)` of the slots of the call and its context (clock, recorder). A value
that stays in its lane is a local, `Free` is `del`, callables and constants are globals. Every source line belongs to
one step, so that the line of an exception identifies the step. At a gate, a lane waits until another lane records an
event: `w3` waits for event 3, `r3_0` lets its first waiter pass, `f` lists the failures of the call.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pkgutil import resolve_name
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from ..costs.roofline import workspace
from ..ir.graph import Argument, Const, Graph, Ref
from ..ir.open_size import OPENED
from ..ir.plan import Plan
from ..ir.program import Compute, Copy, Free, Piece, Program, Record, Step, Wait, makes, reads, tasks_of
from ..lowering.memory_bound import fits
from ..ops import resolve
from .kernels import Kernel
from .lanes.emulated_clock import task_seconds
from .lanes.host import HostLane, clone_aliased

if TYPE_CHECKING:
    from ..capture.captured import Captured

LaneFunction = Callable[[list[Any], Any], None]
_BUILTIN = ("builtin", "method")
"""Prefixes of the type names of C functions and methods."""
_programs = itertools.count()


@dataclass(frozen=True)
class _Layout:
    """The storage of the buffers of a program in a call: slots, which lanes share, and locals.

    slots: numbers of inputs in order, then of other buffers that exist before the call (`state`), then of
    shared buffers that steps make. Any other buffer is a local. The last slot holds the sizes of the call.
    drops: buffers that a lane drops after the step (index of the lane, position).
    makers: indices of the lanes that make the buffers of a storage.
    """

    slots: dict[str, int]
    size: int
    state: tuple[str, ...]
    drops: dict[tuple[int, int], list[str]]
    makers: dict[str, set[int]]


def _laid_out(program: Program, graph: Graph) -> _Layout:
    """Lay out the buffers of a program of `graph`. Linear in its steps."""
    maker = {name: at for at, step in program.steps() for name in makes(step)}
    freed = {step.buffer: at for at, step in program.steps() if isinstance(step, Free)}
    results = frozenset(program.results)
    # The last use of each buffer in the lane that makes it. Other lanes use shared buffers too.
    last, shared = dict(maker), set(results)
    for at, step in program.steps():
        for name in reads(step):
            if name in maker and maker[name][0] == at[0]:
                last[name] = at
            else:
                shared.add(name)
    drops: dict[tuple[int, int], list[str]] = {}
    makers: dict[str, set[int]] = {}
    inputs = {name: position for position, name in enumerate(graph.inputs)}
    slots: dict[str, int] = {}
    state: list[str] = []
    for buffer in program.buffers:
        name = buffer.name
        if name in maker:
            makers.setdefault(buffer.storage, set()).add(maker[name][0])
        if buffer.kind == "result" or name in results:
            shared.add(name)
        elif name in maker:
            # A local that no step frees is dropped after its last reader.
            end = freed.get(name) or (None if name in shared else last[name])
            if end:
                drops.setdefault(end, []).append(name)
        if buffer.kind == "given" and buffer.value in inputs:
            slots[name] = inputs[buffer.value]
        elif buffer.kind in ("given", "resident"):
            slots[name] = len(inputs) + len(state)
            state.append(name)
    size = len(inputs) + len(state)
    for buffer in program.buffers:
        if buffer.name not in slots and buffer.name in shared:
            slots[buffer.name] = size
            size += 1
    return _Layout(slots, size + 1, tuple(state), drops, makers)


class Assembly:
    """The immutable compiled form of a program; events and threads are per call (`lane_threads`).

    lanes: backends of the non-empty lanes.
    streamed: some lanes have streams of their own, other than the caller's.
    recorder, waiters: the lane that records each event, and the lanes that wait for it.
    number: the number of each event in the code of the lanes.
    """

    def __init__(
        self, captured: Captured, plan: Plan, program: Program, kernels: Mapping[str, Kernel] | None = None
    ) -> None:
        self.captured, self.plan, self.program, self.kernels = captured, plan, program, kernels or {}
        self.graph, self.machine = plan.costed.graph, plan.costed.machine
        self.layout = _laid_out(program, self.graph)
        self.devices = tuple(
            torch.device(device.torch_device) for device in self.machine.devices if device.torch_type != "cpu"
        )
        types = ("cpu", captured.home.type, *(device.type for device in self.devices))
        self.types = tuple(dict.fromkeys(types))
        self.declared = self.machine.clock == "declared"
        self.lanes: dict[str, HostLane] = {}
        for lane in program.lanes:
            if lane.steps:
                backend = resolve_name(self.machine.device[lane.device].traits.lane)
                self.lanes[lane.name] = backend(lane, program, self.torch_device(lane.device), self.place)
        streams = {name: lane.device for name, lane in self.lanes.items() if lane.streamed}
        self.streamed = bool(streams)
        steps = [(program.lanes[lane].name, step) for (lane, _), step in program.steps()]
        self.recorder = {step.event: name for name, step in steps if isinstance(step, Record)}
        self.number = {event: number for number, event in enumerate(self.recorder)}
        self.waiters: dict[str, list[str]] = {event: [] for event in self.recorder}
        for name, step in steps:
            if isinstance(step, Wait):
                self.waiters[step.event].append(name)
        # A torch event, as a global of the lanes' code, for each event that a stream records.
        self._signals = {
            f"e{number}": torch.Event(device=streams[self.recorder[event]])
            for event, number in self.number.items()
            if self.recorder[event] in streams
        }
        self._codes: dict[tuple[str, bool], _Code] = {}

    def torch_device(self, name: str) -> torch.device:
        """Return the torch device of a device of the machine."""
        return torch.device(self.machine.device[name].torch_device)

    def place(self, buffer: str) -> torch.device:
        """Return the torch device of a buffer."""
        return self.torch_device(self.program.buffer[buffer].device)

    def code(self, lane: str, recorded: bool) -> _Code:
        """Return the code of a lane, generated on first use."""
        key = lane, recorded
        if key not in self._codes:
            self._codes[key] = _Writer(self, self.lanes[lane], recorded).code()
        return self._codes[key]

    def step_of(self, lane: str, trace: TracebackType | None) -> int:
        """Return the index of the step of a lane that a traceback passes through; -1 if there is none."""
        # It passes through only one of the codes, the one that was executed.
        codes = [code for (name, *_), code in self._codes.items() if name == lane]
        return max((code.step_of(trace) for code in codes), default=-1)

    def function(self, lane: str, recorded: bool, gates: Mapping[str, Any]) -> LaneFunction:
        """Return the function of a lane, with the `gates` of a crew as globals."""
        # Writing the code adds to the names of the lane.
        code = self.code(lane, recorded)
        return code.function({**gates, **self._signals, **self.lanes[lane].names})

    def signal(self, event: str) -> str | None:
        """Return the name of the torch event of an event; None if no stream records it."""
        name = f"e{self.number[event]}"
        return name if name in self._signals else None

    def callable(self, step: Compute) -> Callable[..., Any]:
        """Return the callable of a step's task; its in-place form if the step overwrites given buffers."""
        task, buffer, calls = self.graph.task[step.task], self.program.buffer, self.captured.calls
        memory = {buffer[name].storage for name in step.writes}
        overwrites = memory and all(buffer[name].kind == "given" for name in memory)
        if overwrites and f"{task.target}_" in calls:
            return calls[f"{task.target}_"]
        alone = not any(self.graph.readers[name] or name in self.graph.results for name in task.outputs[1:])
        return calls.get(task.target) or resolve.fast(task, resolve.target(task.target), alone)

    @cached_property
    def _durations(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each task, and of each cluster's dispatch by the cluster's first task."""
        slow_down = self.machine.slow_down
        starts = {c.tasks[0]: c.dispatch_s * slow_down for c in self.plan.costed.clusters}
        return task_seconds(self.plan), starts

    def paced(self, step: Step) -> tuple[Sequence[str], Sequence[str]]:
        """Return the lines that keep the declared clock before and after a computation or copy."""
        if isinstance(step, Compute):
            durations, starts = self._durations
            host = starts.get(step.task, 0.0)
            return [f"c.dispatch({host!r})"] if host else (), [f"c.work({durations[step.task]!r})"]
        assert isinstance(step, Copy)
        source, target = self.program.buffer[step.src], self.program.buffer[step.dst]
        route = self.machine.route(source.device, target.device)
        wires = tuple(sorted({link.wire for link in route if link.wire is not None}))
        seconds = sum(link.seconds(target.bytes) for link in route) * self.machine.slow_down
        return [f"c.reserve({wires!r}, {seconds!r})"], [f"c.work({seconds!r})"]


@dataclass(frozen=True, eq=False)
class _Code:
    """The compiled source of a lane, the step of each line (line 1 first, -1 for none) and the objects of its
    globals."""

    filename: str
    steps: tuple[int, ...]
    names: dict[str, Any]
    compiled: CodeType

    def function(self, names: Mapping[str, Any]) -> LaneFunction:
        """Return the function, with `names` (gates and the like) as further globals."""
        scope: dict[str, Any] = {**self.names, **names, "__name__": self.filename}
        exec(self.compiled, scope)
        return scope["lane"]

    def step_of(self, trace: TracebackType | None) -> int:
        """Return the index of the step whose line a traceback passes through; -1 if there is none."""
        step = -1
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.filename and trace.tb_lineno is not None:
                step = self.steps[trace.tb_lineno - 1]
            trace = trace.tb_next
        return step


class _Writer:
    """Writer of the code of one lane; `recorded` adds calls of the lane's recorder."""

    def __init__(self, assembly: Assembly, backend: HostLane, recorded: bool) -> None:
        self.assembly, self.backend, self.recorded = assembly, backend, recorded
        self.program, self.graph, self.layout = assembly.program, assembly.graph, assembly.layout
        self.lane = self.program.lanes.index(backend.lane)
        self.names: dict[str, Any] = {}
        self.bound: dict[Any, str] = {}
        self.local: dict[str, str] = {}
        self.spare: list[str] = []
        self.locals = 0

    def bind(self, key: Any, prefix: str, value: Any) -> str:
        """Return the name of a constant; equal keys share one."""
        if key not in self.bound:
            self.bound[key] = f"{prefix}{len(self.bound)}"
            self.names[self.bound[key]] = value
        return self.bound[key]

    def read(self, buffer: str) -> str:
        slot = self.layout.slots.get(buffer)
        return f"s[{slot}]" if slot is not None else self.local[buffer]

    def make(self, buffer: str) -> str:
        slot = self.layout.slots.get(buffer)
        if slot is not None:
            return f"s[{slot}]"
        if not self.spare:
            self.spare.append(f"v{self.locals}")
            self.locals += 1
        self.local[buffer] = self.spare.pop()
        return self.local[buffer]

    def expression(self, template: Argument, values: Mapping[str, str], plain: bool) -> str:
        """Return the source of an argument. `plain` callables accept a tuple for a list, which can then be a
        constant."""
        if isinstance(template, Ref):
            return self.read(values[template.value])
        if isinstance(template, Const):
            return self.bind(
                ("const", template.text), "k", resolve.constant(template.text, self.backend.device)
            )
        if isinstance(template, tuple):
            items = [self.expression(item, values, plain) for item in template]
            return f"({_tuple(items)})" if plain else f"[{', '.join(items)}]"
        if isinstance(template, OPENED):
            return template.code
        if isinstance(template, complex) or (isinstance(template, float) and not math.isfinite(template)):
            return self.bind((type(template), repr(template)), "k", template)
        return repr(template)

    def compute(self, step: Compute, index: int) -> Iterator[str]:
        task = self.graph.task[step.task]
        function = self.backend.call(self.assembly.callable(step))
        # The user's own code needs real lists; torch's operators accept tuples.
        plain = isinstance(function, torch._ops.OpOverload) or type(function).__name__.startswith(_BUILTIN)
        values = {self.program.buffer[name].value: name for name in step.reads}
        arguments = [self.expression(argument, values, plain) for argument in task.args]
        for name, value in task.kwargs:
            source = self.expression(value, values, plain)
            arguments.append(f"**{{{name!r}: {source}}}" if keyword.iskeyword(name) else f"{name}={source}")
        text = f"{self.bind(('call', id(function)), 't', function)}({', '.join(arguments)})"
        buffers = {self.program.buffer[name].value: name for name in step.writes}
        targets = [self.make(buffers[name]) if name in buffers else "_" for name in task.outputs]
        if task.unpack:
            text = f"{_tuple(targets)} = {text}"
        elif targets and targets != ["_"]:
            text = f"{targets[0]} = {text}"
        text = f"{text}  # {' '.join(task.where.split())}"
        outputs = [name for name in targets if name != "_"]
        yield from self.work(step, index, text, outputs, self.unaliased(step))
        if task.unpack and "_" in targets:
            yield "del _"

    def piece(self, step: Piece, index: int) -> Iterator[str]:
        kernel = self.assembly.kernels[step.tasks[0]]
        arguments = [self.read(step.reads[position]) for position in kernel.takes]
        targets = [self.make(name) for name in step.writes]
        text = f"{self.bind(('kernel', id(kernel)), 't', kernel.call)}({', '.join(arguments)})"
        text = f"{_tuple(targets)} = {text}  # {kernel.library}: {len(step.tasks)} tasks"
        return self.work(step, index, text, targets)

    def unaliased(self, step: Compute) -> Iterator[str]:
        """Yield lines that clone outputs which share memory with an input although the schema does not say
        so, if another lane frees that input or the caller could write to it as a result."""
        buffer, own = self.program.buffer, {self.lane}
        for name in step.writes:
            root = buffer[buffer[name].storage]
            others = []
            for read in step.reads:
                source = buffer[buffer[read].storage]
                elsewhere = self.layout.makers.get(source.name, own) != own
                foreign = elsewhere and self.backend.device.type != "cpu"
                state = source.kind == "resident" and root.kind == "result"
                if source is not root and (foreign or state):
                    others.append(self.read(read))
            if others:
                target = self.read(name)
                yield f"{target} = {self.bind('clone_aliased', 't', clone_aliased)}({', '.join((target, *others))})"

    def copy(self, step: Copy, index: int) -> Iterator[str]:
        source = self.read(step.src)
        target = self.make(step.dst)
        text = f"{target} = {self.backend.copy(step, source)}  # {step.src} to {step.dst}"
        return self.work(step, index, text, [target])

    def work(
        self, step: Step, index: int, text: str, outputs: Sequence[str], more: Iterable[str] = ()
    ) -> Iterator[str]:
        before, after = self.assembly.paced(step) if self.assembly.declared else ((), ())
        yield from before
        if self.recorded:
            yield f"r.begin({index})"
        yield text
        yield from more
        yield from after
        if self.recorded:
            yield f"r.end({', '.join((str(index), *outputs))})"

    def drop(self, buffers: Sequence[str]) -> Iterator[str]:
        names = []
        for name in buffers:
            slot = self.layout.slots.get(name)
            if slot is not None:
                yield f"s[{slot}] = None"
            elif name in self.local:
                names.append(self.local.pop(name))
        if names:
            yield f"del {', '.join(names)}"
            self.spare.extend(reversed(names))

    def step(self, step: Step, index: int) -> Iterator[str]:
        """Yield the lines of a step. Call it in the order of the steps, since they reuse locals."""
        number, declared = self.assembly.number, self.assembly.declared
        match step:
            case Compute():
                yield from self.compute(step, index)
            case Piece():
                yield from self.piece(step, index)
            case Copy():
                yield from self.copy(step, index)
            case Wait(event):
                yield f"if w{number[event]}() and f: raise Cancelled"
                if signal := self.assembly.signal(event):
                    yield from self.backend.wait(event, signal)
                if declared:
                    yield f"c.wait({event!r})"
            case Record(event):
                if declared:
                    yield f"c.record({event!r})"
                if signal := self.assembly.signal(event):
                    yield f"record_event({signal})"
                for position in range(len(self.assembly.waiters[event])):
                    yield f"r{number[event]}_{position}()"
        yield from self.drop(self.layout.drops.get((self.lane, index), ()))

    def code(self) -> _Code:
        """Return the code of the whole lane. Linear in its steps."""
        lane = self.backend.lane
        lines = [(-1, "def lane(s, d):")]
        if self.assembly.captured.sizes:
            lines.append((-1, "n = s[-1]"))
        if self.recorded:
            lines.append((-1, f"r = d.recorder({lane.name!r})"))
        if self.assembly.declared:
            lines.append((-1, "c = d.clock()"))
        lines += [(-1, text) for text in self.backend.first]
        for index, step in enumerate(lane.steps):
            lines += [(index, text) for text in self.step(step, index)]
        lines += [(-1, text) for text in self.backend.last]
        if len(lines) == 1:
            lines.append((-1, "pass"))
        source = "\n    ".join(text for _, text in lines) + "\n"
        # linecache keeps one text for each name, and none for names in angle brackets.
        filename = f"autopar program {next(_programs)} of {self.graph.name}, {lane.name}"
        compiled = compile(source, filename, "exec", optimize=2)
        linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
        code = _Code(filename, tuple(index for index, _ in lines), self.names, compiled)
        weakref.finalize(code, linecache.cache.pop, filename, None)
        return code


def _tuple(items: Sequence[str]) -> str:
    """Return the source of a tuple, without parentheses."""
    return f"{', '.join(items)}{',' if len(items) == 1 else ''}"


def keeps_caps(program: Program, graph: Graph) -> bool:
    """Return True if a program keeps every memory cap in a call in which the values of its graph have the bytes that
    `graph` tells."""
    buffers = tuple(
        each if each.kind == "resident" else replace(each, bytes=graph.value[each.value].bytes)
        for each in program.buffers
    )
    tasks = (task for _, step in program.steps() for task in tasks_of(step))
    scratch = tuple((task, workspace(graph, graph.task[task])) for task in tasks)
    everything = sum(each.bytes for each in buffers) + sum(nbytes for _, nbytes in scratch)
    # The bound takes milliseconds, as much as a short call, and each length of a sequence may be new.
    return all(everything <= cap for _, cap in program.caps) or fits(
        replace(program, buffers=buffers, workspace=scratch)
    )
