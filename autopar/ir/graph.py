"""Task graph: `Value`, `Task` and `Graph`. Pure data, made by capture and rewritten by split.

Tasks are in capture order, which is topological. Arguments are plain Python values; a tensor is a `Ref` to a value,
and an object that only torch can name is a `Const`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import networkx

from ..errors import PlanError
from ..system.text import printable, table


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to a value in the arguments of a task."""

    value: str


@dataclass(frozen=True, slots=True)
class Const:
    """A constant without a Python literal, by torch's name: `torch.float32`, `torch.strided`.
    `Const("device")`: the task's device, so no graph names the device of its capture."""

    text: str


Argument: TypeAlias = Ref | Const | bool | int | float | complex | str | tuple["Argument", ...] | None
"""An argument of a task; a tuple holds further arguments."""

JOIN = "autopar.join"
"""Target of a task that concatenates: args `((Ref, ...), axis)`, or `((Ref, ...), axis, order)` if the axes of its
output are permuted in memory (`Value.order`)."""
PART = "autopar.part"
"""Target of a task that slices rows of a value: args `(Ref, axis, start, stop, count)`; `axis` has `count` rows."""
SUM = "autopar.sum"
"""Target of a task that adds tensors of one shape, left to right: args `((Ref, ...),)`."""

WORDS = "autopar.embedding.words"
"""Target of a lookup in the rows `first` to `first + count` of a table, zeros for other indices: args `(table,
indices, first, count)`."""
UPDATES = ("autopar.sgd", "autopar.adam", "autopar.adamw")
"""Targets of tasks that update parameters: args are `(path, number of its group, parameter, gradient,
coefficient, *state)` for each; outputs: the new parameter and its state, `Graph.flat` values if several."""

DEFAULT = "default"
"""`Task.random`: draws from the generator of the device of the user's call, in program order."""
LOCAL = "local"
"""`Task.random`: draws from the generator of the device it runs on, in the plan's order."""

ALIGNED = 64
"""Alignment in bytes of each tensor in a flat buffer, equal to that of a tensor with its own memory."""

SUMMED = -1
"""In `Cut.outputs`: the output is the sum of the outputs of all parts, each of the whole's shape."""
OWN = -2
"""In a `Cut`: each part has its own value, of the whole's shape; the first stands for the whole."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to split a task into independent parts.

    inputs: the split axis of each of `Task.inputs`, or `OWN`; None: needed whole.
    outputs: the axis along which each output is joined, `SUMMED` or `OWN`.
    scale: paths in `args` of integers that shrink with the part: `((1, 0),)` is `args[1][0]`.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    scale: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` rows of the state `of` along `axis`, starting at `start`."""

    of: str
    axis: int
    start: int
    length: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this part of a tensor of shape `whole`; empty if there is no such part."""
        if (
            not 0 <= self.axis < len(whole)
            or not 0 <= self.start <= self.start + self.length <= whole[self.axis]
        ):
            return ()
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: `shape` in elements, `bytes` of those elements.

    storage: the value whose memory it may share.
    kind: `input` of the call, `state` (parameter, buffer or constant), or `made` by a task.
    path: state dict key of state, argument path of an input.
    dtype: "object" for a Python value without bytes.
    order: axes from the slowest to the fastest in memory, if permuted.
    slice: the part of another state that this state is; it shares memory with it but is transferred alone.
    part: the value of which it is a part, and its number among the parts; for display.
    label: the step of a rewritten task that makes it, such as `squares`; for display.
    open: extents and number of elements, those that depend on a call's sizes as `OpenSize`; empty if it is not known
    which do. Not in files.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: str
    kind: Literal["input", "state", "made"] = "made"
    path: str = ""
    order: tuple[int, ...] = ()
    slice: Slice | None = None
    part: tuple[str, int] | None = field(default=None, repr=False, compare=False)
    label: str = field(default="", repr=False, compare=False)
    open: tuple[int, ...] = field(default=(), repr=False, compare=False, metadata={"saved": False})


@dataclass(frozen=True, slots=True)
class Task:
    """One call, `target(*args, **kwargs)`, with the results `outputs` (unpacked from a sequence if `unpack`).

    after: tasks that must end first, without a data dependency (to keep the order of random draws).
    random: generator it draws from, `DEFAULT` or `LOCAL`.
    free: a view, which moves no data.
    home: bound to the device of the user's call.
    flops: floating-point operations; a multiply and an add count as two.
    module, source: place in the user's code.
    label: name for display: the captured operator, which the tasks that replace it keep; without one, that of `target`.
    inputs: names of the values read, each once, in order.
    """

    name: str
    target: str
    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[str, ...] = ()
    unpack: bool = False
    after: tuple[str, ...] = ()
    random: str | None = None
    free: bool = False
    home: bool = False
    flops: int = 0
    cuts: tuple[Cut, ...] = ()
    module: str = ""
    source: str = ""
    code: str = ""
    origin: str = ""
    part: str = ""
    phase: Literal["forward", "backward", "update"] = "forward"
    label: str = field(default="", repr=False, compare=False)
    inputs: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once, since every stage reads it several times.
        inputs: dict[str, None] = {}
        for argument in (*self.args, *[value for _, value in self.kwargs]):
            if isinstance(argument, Ref):
                inputs[argument.value] = None
            elif isinstance(argument, tuple):
                inputs.update(dict.fromkeys(refs(argument)))
        object.__setattr__(self, "inputs", tuple(inputs))

    def reading(self, names: Mapping[str, str]) -> Task:
        """Return the task with other inputs; without cuts if two become one, since cuts have an axis for
        each."""
        if names.keys().isdisjoint(self.inputs):
            return self
        args = tuple(replace_refs(argument, names) for argument in self.args)
        kwargs = tuple((key, replace_refs(argument, names)) for key, argument in self.kwargs)
        task = replace(self, args=args, kwargs=kwargs)
        return task if len(task.inputs) == len(self.inputs) else replace(task, cuts=())

    @property
    def where(self) -> str:
        """Task, module path and source line as a phrase for messages."""
        place = (f" in {self.module}" if self.module else "") + (f" at {self.source}" if self.source else "")
        return printable(f"task {self.name!r} ({self.target}){place}")


def room(value: Value) -> int:
    """Return the number of elements that a non-empty value takes in a flat value."""
    count = math.prod(value.shape)
    step = max(1, ALIGNED * count // value.bytes)
    return -(-count // step) * step


def padded(value: Value) -> int:
    """Return the bytes that a value takes in a flat buffer; its own bytes if it is no tensor (no dtype)."""
    count = math.prod(value.shape)
    return room(value) * (value.bytes // count) if value.dtype and value.bytes else value.bytes


def refs(argument: Argument) -> Iterator[str]:
    """Yield the names of the values in an argument, in order, with repeats."""
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs(item)


def replace_refs(argument: Argument, names: Mapping[str, str]) -> Argument:
    """Return the argument with values renamed by `names`; other values stay."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.value, argument.value))
    if isinstance(argument, tuple):
        return tuple(replace_refs(item, names) for item in argument)
    return argument


@dataclass(frozen=True)
class Graph:
    """Tasks in topological order and the values between them.

    inputs, state: values that exist before the call.
    outputs: values returned to the caller.
    updates: (made value, input or state value that it replaces at the end).
    split: how the batch was split, such as `2 parts: 50 + 50`, or features; empty if not.
    changing: state updated by an optimizer between calls: transferred from home in the call, replicas kept.
    carried: state updated by the call itself: tasks read the replica, and every device with a replica gets
    the new value for the next call.
    streamed: state without replicas: only at home, transferred in each call to the devices that read it.
    flat: values that each hold the new values of several states (`pieces`), transferred together.
    paths: (path of each parameter or buffer, first path of the same tensor); empty without a model.

    All other state is resident: transferred before the first call to each device that reads it, and kept.
    """

    name: str
    values: tuple[Value, ...]
    tasks: tuple[Task, ...]
    inputs: tuple[str, ...]
    state: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    split: str = ""
    changing: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()

    @cached_property
    def pieces(self) -> dict[str, tuple[int, int]]:
        """First element and length of each input or state whose new value is in a `flat` value."""
        ends = dict.fromkeys(self.flat, 0)
        pieces = {}
        for new, target in self.updates:
            if new in ends:
                value = self.value[target]
                pieces[target] = ends[new], math.prod(value.shape)
                ends[new] += room(value)
        return pieces

    @cached_property
    def copies(self) -> dict[str, tuple[str, int]]:
        """The state whose memory holds the replicas of each state, and its bytes.

        Each starts at a multiple of `ALIGNED` in a flat buffer. If one of `pieces` is read, all are there.
        """
        first = dict(reversed(self.updates))
        whole = {target: new for new, target in self.updates if new in self.flat}
        copies = {}
        for name in self.state:
            if name in whole:
                copies[name] = first[whole[name]], self.value[whole[name]].bytes
                continue
            value = self.value[name]
            root = value if value.slice else self.value[value.storage]
            copies[name] = root.name, max(padded(root), padded(value))
        return copies

    @cached_property
    def resident(self) -> frozenset[str]:
        """State with a replica, before the call, on each device that reads it."""
        brought = {*self.changing, *self.streamed}
        return frozenset(self.state) - (self.mutated - {*self.carried}) - brought

    @cached_property
    def refreshed(self) -> frozenset[str]:
        """State whose replicas are refreshed within the call and stay after it."""
        return frozenset(self.changing) - self.mutated

    @cached_property
    def value(self) -> dict[str, Value]:
        """Values by name."""
        return {value.name: value for value in self.values}

    @cached_property
    def task(self) -> dict[str, Task]:
        """Tasks by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def producer(self) -> dict[str, str]:
        """Name of the task that makes each made value."""
        return {output: task.name for task in self.tasks for output in task.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Names of the tasks that read each value, in capture order."""
        readers: dict[str, list[str]] = {value.name: [] for value in self.values}
        for task in self.tasks:
            for name in task.inputs:
                readers[name].append(task.name)
        return {name: tuple(tasks) for name, tasks in readers.items()}

    @cached_property
    def mutated(self) -> frozenset[str]:
        """Inputs and state that change during a call, so no replica of them outlives it."""
        return frozenset(target for _, target in self.updates)

    @cached_property
    def results(self) -> frozenset[str]:
        """Values that outlive a call: outputs and updates."""
        return frozenset(self.outputs) | {new for new, _ in self.updates}

    def with_tasks(self, tasks: Sequence[Task], **changes: Any) -> Graph:
        """Return the graph with these tasks and `changes`, without unused values; one whose storage is gone
        gets its own."""
        graph = replace(self, tasks=tuple(tasks), **changes)
        there = {*graph.inputs, *graph.state, *(name for task in tasks for name in task.outputs)}
        values = (value for value in graph.values if value.name in there)
        valid = tuple(
            value if value.storage in there else replace(value, storage=value.name) for value in values
        )
        return replace(graph, values=valid).check()

    def networkx(self) -> networkx.DiGraph:
        """Return the dependency graph: an edge for each read value, with its bytes, and for each `after`."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(task.name for task in self.tasks)
        for task in self.tasks:
            for name in task.inputs:
                if name in self.producer:
                    source = self.producer[name]
                    had = graph.get_edge_data(source, task.name, {"bytes": 0})["bytes"]
                    graph.add_edge(source, task.name, bytes=had + self.value[name].bytes)
            for earlier in task.after:
                if not graph.has_edge(earlier, task.name):
                    graph.add_edge(earlier, task.name, bytes=0)
        return graph

    def check(self) -> Graph:
        """Return self, or raise PlanError with the first error."""
        for text in chain(_wrong_names(self), _wrong_tasks(self), _wrong_state(self)):
            raise PlanError(f"graph {self.name!r} is not well formed: {text}")
        return self

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [("task", "target", "reads", "makes", "module")]
        for task in self.tasks:
            makes = ", ".join(f"{name}{list(self.value[name].shape)}" for name in task.outputs)
            rows.append((task.name, task.target, ", ".join(task.inputs), makes, task.module))
        return f"graph {self.name}: {len(self.tasks)} tasks, {len(self.state)} state\n" + table(rows)


def _wrong_names(graph: Graph) -> Iterator[str]:
    if len(graph.value) != len(graph.values):
        yield "two values share a name"
    if len(graph.task) != len(graph.tasks):
        yield "two tasks share a name"
    for name in (*graph.inputs, *graph.state):
        if name not in graph.value:
            yield f"input or state {name!r} is not among its values"
    for value in graph.values:
        if value.storage not in graph.value:
            yield f"value {value.name!r} shares the storage of {value.storage!r}, which is not there"


def _wrong_tasks(graph: Graph) -> Iterator[str]:
    ready = {*graph.inputs, *graph.state}
    done: set[str] = set()
    for task in graph.tasks:
        for name in task.inputs:
            if name not in ready:
                yield f"{task.where} reads {name!r} before anything makes it"
        for earlier in task.after:
            if earlier not in done:
                yield f"{task.where} must follow {earlier!r}, which is not before it"
        for cut in task.cuts:
            if len(cut.inputs) != len(task.inputs) or len(cut.outputs) != len(task.outputs):
                yield f"{task.where} has a cut with the wrong number of axes"
        for name in task.outputs:
            if name not in graph.value:
                yield f"{task.where} makes {name!r}, which is not among its values"
            if name in ready:
                yield f"{task.where} makes {name!r} a second time"
            ready.add(name)
        done.add(task.name)
    for name in (*graph.outputs, *(new for new, _ in graph.updates)):
        if name not in ready:
            yield f"nothing makes the output {name!r}"


def _wrong_state(graph: Graph) -> Iterator[str]:
    for name in (*graph.changing, *graph.carried, *graph.streamed):
        if name not in graph.state:
            yield f"{name!r} is said to change from call to call, or to stay at home, but is not state"
    for value in graph.values:
        whole = graph.value.get(value.slice.of) if value.slice else None
        if value.slice and (whole is None or value.slice.shape(whole.shape) != value.shape):
            yield f"{value.name!r} is not part of {value.slice.of!r}"
    held = dict.fromkeys(graph.flat, 0)
    for new, target in graph.updates:
        if target in graph.carried and new not in graph.producer:
            yield f"{new!r}, the new value of the carried state {target!r}, is made by no task; copy it"
        if new in held:
            if not graph.value[target].bytes:
                yield f"{target!r}, which is empty, has no piece of {new!r}"
            held[new] += room(graph.value[target])
    for name, count in held.items():
        if graph.value[name].shape != (count,):
            yield f"{name!r} is not as long as the states whose new values it holds"
