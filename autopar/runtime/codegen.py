"""From the steps of one lane to straight-line Python: `lane_code`.

The code of a lane is one function `lane(s, d)` of the slots of the call and what else the call has (clock,
recorder). A value that stays in its lane is a local, `Free` is `del`, callables and constants are globals of
the function. Every source line belongs to one step, so the line of an exception names the step that failed.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeAlias

import torch

from ..ir.graph import Argument, Const, Graph, Ref, Task
from ..ir.program import Compute, Copy, Free, Lane, Piece, Program, Record, Step, Wait
from ..ops import resolve as bind
from .kernels import Kernel
from .lanes.host import apart
from .slots import Layout


@dataclass(frozen=True)
class Code:
    """The source of a lane, the step of each line (line 1 first, -1 for none) and the objects its names stand
    for.
    """

    lane: str
    filename: str
    source: str
    steps: tuple[int, ...]
    names: dict[str, Any]
    compiled: CodeType

    def function(self, names: Mapping[str, Any]) -> Callable[[list[Any], Any], None]:
        """The function, with `names` (gates and the like) beside its own constants as globals."""
        scope: dict[str, Any] = {
            **self.names,
            **names,
            "__name__": self.filename,
            "__loader__": _Source(self.source),
        }
        linecache.lazycache(self.filename, scope)
        exec(self.compiled, scope)
        return scope["lane"]

    def step_of(self, trace: TracebackType | None) -> int:
        """The index of the step whose line a traceback passes through; -1 when it passes through none."""
        found = -1
        while trace is not None:
            frame: FrameType = trace.tb_frame
            if frame.f_code.co_filename == self.filename and trace.tb_lineno is not None:
                found = self.steps[trace.tb_lineno - 1]
            trace = trace.tb_next
        return found


@dataclass(frozen=True)
class _Source:
    """Loader of generated code for linecache, which asks it for the text in tracebacks."""

    text: str

    def get_source(self, _: str) -> str:
        """The text, whatever module it is asked for."""
        return self.text


Lines: TypeAlias = Sequence[str]
_programs = itertools.count()


def _nothing(_: Step) -> tuple[Lines, Lines]:
    return (), ()


@dataclass(frozen=True)
class Style:
    """Code generation of the steps of a lane.

    `wait` and `record` give the lines of an event, `copy` the expression that copies the expression it is
    given, `around` what stands before and after a compute or copy. `recorded` adds calls of the lane's
    recorder. `first` and `last` begin and end the lane.
    """

    wait: Callable[[str], Lines]
    record: Callable[[str], Lines]
    copy: Callable[[Copy, str], str]
    around: Callable[[Step], tuple[Lines, Lines]] = _nothing
    recorded: bool = False
    first: Lines = ()
    last: Lines = ()


class _Writer:
    def __init__(
        self, program: Program, graph: Graph, lane: Lane, layout: Layout, device: torch.device, style: Style,
        call: Callable[[Task], Callable[..., Any]], kernels: Mapping[str, Kernel],
    ) -> None:  # fmt: skip
        self.program, self.graph, self.lane, self.layout = program, graph, lane, layout
        self.device, self.style, self.call, self.kernels = device, style, call, kernels
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.names: dict[str, Any] = {}
        self.bound: dict[Any, str] = {}
        self.local: dict[str, str] = {}
        self.spare: list[str] = []
        self.locals = 0

    def line(self, text: str, step: int) -> None:
        self.lines.append(text)
        self.steps.append(step)

    def bind(self, key: Any, prefix: str, value: Any) -> str:
        """The name of a constant; equal keys share one."""
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
        """Source of an argument. `plain` callables take a tuple for a list, which then is a constant."""
        if isinstance(template, Ref):
            return self.read(values[template.value])
        if isinstance(template, Const):
            return self.bind(("const", template.text), "k", bind.constant(template.text, self.device))
        if isinstance(template, tuple):
            items = [self.expression(item, values, plain) for item in template]
            return (
                f"({', '.join(items)}{',' if len(items) == 1 else ''})" if plain else f"[{', '.join(items)}]"
            )
        if isinstance(template, float) and not math.isfinite(template):
            return self.bind(("float", repr(template)), "k", template)
        if isinstance(template, complex):
            return self.bind(("complex", repr(template)), "k", template)
        return repr(template)

    def compute(self, step: Compute, index: int) -> None:
        task = self.graph.task[step.task]
        function = self.call(task)
        plain = not _is_user(function)
        values = {self.program.buffer[name].value: name for name in step.reads}
        arguments = [self.expression(argument, values, plain) for argument in task.args]
        odd = [(name, value) for name, value in task.kwargs if keyword.iskeyword(name)]
        for name, value in task.kwargs:
            if not keyword.iskeyword(name):
                arguments.append(f"{name}={self.expression(value, values, plain)}")
        if odd:
            pairs = (f"{name!r}: {self.expression(value, values, plain)}" for name, value in odd)
            arguments.append(f"**{{{', '.join(pairs)}}}")
        text = f"{self.bind(('call', id(function)), 't', function)}({', '.join(arguments)})"
        made = {self.program.buffer[name].value: name for name in step.writes}
        targets = [self.make(made[name]) if name in made else "_" for name in task.outputs]
        if task.unpack:
            text = f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {text}"
        elif targets and targets != ["_"]:
            text = f"{targets[0]} = {text}"
        text = f"{text}  # {' '.join(task.where.split())}"
        self.work(step, index, text, [name for name in targets if name != "_"], self.owned(step, made))
        if task.unpack and "_" in targets:
            self.line("del _", index)

    def piece(self, step: Piece, index: int) -> None:
        kernel = self.kernels[step.tasks[0]]
        arguments = [self.read(step.reads[position]) for position in kernel.takes]
        targets = [self.make(name) for name in step.writes]
        text = f"{self.bind(('kernel', id(kernel)), 't', kernel.call)}({', '.join(arguments)})"
        text = f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {text}"
        self.work(step, index, f"{text}  # {kernel.stack}: {len(step.tasks)} tasks", targets)

    def owned(self, step: Compute, made: Mapping[str, str]) -> Iterator[str]:
        """Lines that make sure of memory that is this lane's to free, or the caller's to write to, where an operator
        may hand on what it was given though no schema says so.
        """
        about, own = self.program.buffer, {self.lane.name}
        for name in made.values():
            root = about[about[name].storage]
            others = []
            for read in step.reads:
                lent = about[about[read].storage]
                away = self.layout.makers.get(lent.name, own) != own and self.device.type != "cpu"
                kept = lent.kind == "resident" and root.kind == "result"
                if lent is not root and (away or kept):
                    others.append(self.read(read))
            if others:
                target = self.read(name)
                yield f"{target} = {self.bind('apart', 'own', apart)}({', '.join((target, *others))})"

    def copy(self, step: Copy, index: int) -> None:
        source = self.read(step.src)
        made = self.make(step.dst)
        text = f"{made} = {self.style.copy(step, source)}  # {step.src} to {step.dst}"
        self.work(step, index, text, [made])

    def work(self, step: Step, index: int, text: str, made: Sequence[str], more: Iterable[str] = ()) -> None:
        before, after = self.style.around(step)
        for line in before:
            self.line(line, index)
        if self.style.recorded:
            self.line(f"r.begin({index})", index)
        self.line(text, index)
        for line in (*more, *after):
            self.line(line, index)
        if self.style.recorded:
            self.line(f"r.end({', '.join((str(index), *made))})", index)

    def drop(self, buffers: Sequence[str], index: int) -> None:
        gone = []
        for name in buffers:
            slot = self.layout.slots.get(name)
            if slot is not None:
                self.line(f"s[{slot}] = None", index)
            elif name in self.local:
                gone.append(self.local.pop(name))
        if gone:
            self.line(f"del {', '.join(gone)}", index)
            self.spare.extend(reversed(gone))

    def step(self, step: Step, index: int) -> None:
        match step:
            case Compute():
                self.compute(step, index)
            case Piece():
                self.piece(step, index)
            case Copy():
                self.copy(step, index)
            case Wait():
                for text in self.style.wait(step.event):
                    self.line(text, index)
            case Record():
                for text in self.style.record(step.event):
                    self.line(text, index)
            case Free():
                pass
        self.drop(self.layout.drops.get((self.lane.name, index), ()), index)


def _is_user(function: Callable[..., Any]) -> bool:
    """True if a list must reach the callable as a list; torch's own operators take a tuple for it."""
    return not isinstance(function, torch._ops.OpOverload) and not type(function).__name__.startswith(
        ("builtin", "method")
    )


def lane_code(
    program: Program, graph: Graph, lane: Lane, layout: Layout, device: torch.device, style: Style,
    call: Callable[[Task], Callable[..., Any]], kernels: Mapping[str, Kernel],
) -> Code:  # fmt: skip
    """The code of one lane, whose tensors are on `device`; `call` gives the callable of a task, `kernels` those of
    pieces by their first task. Linear in its steps.
    """
    writer = _Writer(program, graph, lane, layout, device, style, call, kernels)
    writer.line("def lane(s, d):", -1)
    if style.recorded:
        writer.line(f"r = d.recorder({lane.name!r})", -1)
    for text in style.first:
        writer.line(text, -1)
    for index, step in enumerate(lane.steps):
        writer.step(step, index)
    for text in style.last:
        writer.line(text, -1)
    if len(writer.lines) == 1:
        writer.line("pass", -1)
    source = writer.lines[0] + "\n" + "".join(f"    {line}\n" for line in writer.lines[1:])
    # linecache keeps one text for each name, and none for names in angle brackets.
    filename = f"autopar program {next(_programs)} of {graph.name}, {lane.name}"
    made = Code(
        lane.name,
        filename,
        source,
        tuple(writer.steps),
        writer.names,
        compile(source, filename, "exec", optimize=2),
    )
    weakref.finalize(made, linecache.cache.pop, filename, None)
    return made
