"""Task graph: `Value`, `Task` and `Graph`. Pure data, made by capture and rewritten by split.

Tasks are in capture order, a topological one. Arguments are plain Python values in which a tensor is a `Ref` to a value
and what only torch can name is a `Const`.
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
from ..system.text import table
from .slices import Slice


@dataclass(frozen=True, slots=True)
class Ref:
    """A value where a task takes an argument."""

    value: str


@dataclass(frozen=True, slots=True)
class Const:
    """A constant that is no Python literal, by the name torch gives it: `torch.float32`, `torch.strided`.

    `Const("device")` is the device of the task itself, so that no graph names the device it was captured on.
    """

    text: str


Argument: TypeAlias = Ref | Const | bool | int | float | complex | str | tuple["Argument", ...] | None
"""An argument of a task; a tuple holds arguments in turn."""

JOIN = "autopar.join"
"""Target of a task that concatenates: args `((Ref, ...), axis)`, or `((Ref, ...), axis, order)` where the axes of what
it makes are not in order (`Value.order`)."""
PART = "autopar.part"
"""Target of a task that takes rows of a value without computing: args `(Ref, axis, start, stop)`."""
SUM = "autopar.sum"
"""Target of a task that adds tensors of one shape from left to right: args `((Ref, ...),)`."""

UPDATES = ("autopar.sgd", "autopar.adam", "autopar.adamw")
"""Targets of tasks that step parameters: args are `(path, number of its group, parameter, gradient, coefficient,
*state)` for each; they make the new parameter and its state, of several parameters each as one `Graph.flat` value."""

DEFAULT = "default"
"""`Task.random` of what draws from the generator of the device that the call comes from, in program order."""
LOCAL = "local"
"""`Task.random` of what draws from the generator of the device it runs on, in the order that a plan has there."""

ALIGNED = 64
"""Bytes to a multiple of which each tensor starts in a flat buffer, so that kernels read it as one of its own."""

SUMMED = -1
"""In `Cut.outputs`: each part makes a summand of the whole, of the whole's shape."""
OWN = -2
"""In a `Cut`: a value of the whole's shape that each part has for itself; the first part's stands for the whole."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One way in which a task may be cut into parts that need nothing of each other.

    `inputs` has one axis (or None: needed whole) for each of `Task.inputs`, `outputs` one for each output. Instead of
    an axis an output may be `SUMMED`, and either may be `OWN`. `scale` names the integer arguments that shrink with the
    part, as paths into `args`: `((1, 0),)` is `args[1][0]`.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    scale: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: `shape` in elements, `bytes` of its own elements, `storage` the value whose memory it may share.

    `kind` says where it comes from: an `input` of the call, `state` (a parameter, buffer or constant), or `made`
    by a task. `path` is the state_dict key of state and the argument path of an input. `dtype` "object" is a
    Python value without bytes. `order` has the axes from the slowest to the fastest in memory, as they were when
    captured, where they are not in order. State with a `slice` is part of other state, in its memory, copied alone.
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


@dataclass(frozen=True, slots=True)
class Task:
    """One call: `target(*args, **kwargs)` makes `outputs` (unpacked from a sequence when `unpack`).

    `after` names tasks that must have ended though no value says so (random order). `random` is the generator it draws
    from, `DEFAULT` or `LOCAL`. `free` marks views, which move no data. `home` ties a task to the device the user's
    call comes from. `flops` counts multiply and add as two. `module` and `source` say where the user wrote
    it. `phase` is the part of a training step it belongs to. `inputs` are names of values, each once, in order.
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
    inputs: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked for several times at every stage.
        seen: dict[str, None] = {}
        for argument in (*self.args, *[value for _, value in self.kwargs]):
            if isinstance(argument, Ref):
                seen[argument.value] = None
            elif isinstance(argument, tuple):
                seen.update(dict.fromkeys(refs(argument)))
        object.__setattr__(self, "inputs", tuple(seen))

    def reading(self, names: Mapping[str, str]) -> Task:
        """The same with other values in the place of those it reads; without cuts, which have an axis for each value,
        where two of these are now one."""
        if names.keys().isdisjoint(self.inputs):
            return self
        args = tuple(replace_refs(argument, names) for argument in self.args)
        kwargs = tuple((key, replace_refs(argument, names)) for key, argument in self.kwargs)
        made = replace(self, args=args, kwargs=kwargs)
        return made if len(made.inputs) == len(self.inputs) else replace(made, cuts=())

    @property
    def where(self) -> str:
        """Task, module path and source line in one phrase, for messages."""
        place = f" in {self.module}" if self.module else ""
        return f"task {self.name!r} ({self.target}){place}" + (f" at {self.source}" if self.source else "")


def room(value: Value) -> int:
    """Elements that a value, which is not empty, takes in a flat one."""
    count = math.prod(value.shape)
    step = max(1, ALIGNED * count // value.bytes)
    return -(-count // step) * step


def padded(value: Value) -> int:
    """Bytes that a value takes in a flat buffer. Values of graphs that were never tensors have no dtype, and are in
    none."""
    count = math.prod(value.shape)
    return room(value) * (value.bytes // count) if value.dtype and value.bytes else value.bytes


def refs(argument: Argument) -> Iterator[str]:
    """Names of the values inside one argument, in order, repeats included."""
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs(item)


def replace_refs(argument: Argument, names: Mapping[str, str]) -> Argument:
    """The argument with each value renamed by `names` (values it lacks stay)."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.value, argument.value))
    if isinstance(argument, tuple):
        return tuple(replace_refs(item, names) for item in argument)
    return argument


@dataclass(frozen=True)
class Graph:
    """Tasks in topological order and the values between them.

    `inputs` and `state` name the values that are there before the call; `outputs` the values the caller gets;
    `updates` pairs (made value, input or state value it is written back to after the cluster). `split` says how
    the batch was cut, for example `2 parts: 50 + 50`, or features; empty when nothing was.

    State is resident where it is read: copied there before the first call and kept. Two kinds differ. `changing`
    state (weights that an optimizer steps between calls) is copied from its home within the call, and the copies
    are kept. `carried` state is updated by the call itself: what is read is the resident copy, and the new value
    is brought to every device that has one, to be the resident copy of the next call. And `streamed` state has no
    copies: it lives at home alone, and each call brings it to who reads it elsewhere.

    A `flat` value is the new value of several states at once (`pieces`), which travel together.

    `paths` pairs the path of every parameter and buffer of the model, read or not, with the first path of the same
    tensor; empty where there is no model.
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
        """Of each input or state whose new value is in a `flat` one: the first element there, and how many."""
        ends = dict.fromkeys(self.flat, 0)
        found = {}
        for made, target in self.updates:
            if made in ends:
                value = self.value[target]
                found[target] = ends[made], math.prod(value.shape)
                ends[made] += room(value)
        return found

    @cached_property
    def copies(self) -> dict[str, tuple[str, int]]:
        """Of each state, the state in whose memory the copies of it are kept, and how many bytes that has.

        Each begins at a multiple of `ALIGNED` of a flat buffer. Where one of `pieces` is read, all are there.
        """
        first: dict[str, str] = {}
        for made, target in self.updates:
            first.setdefault(made, target)
        whole = {target: made for made, target in self.updates if made in self.flat}
        found = {}
        for name in self.state:
            if name in whole:
                found[name] = first[whole[name]], self.value[whole[name]].bytes
                continue
            value = self.value[name]
            root = value if value.slice else self.value[value.storage]
            found[name] = root.name, max(padded(root), padded(value))
        return found

    @cached_property
    def resident(self) -> frozenset[str]:
        """State of which each device that reads it has a copy before the call."""
        brought = {*self.changing, *self.streamed}
        return frozenset(self.state) - (self.mutated - {*self.carried}) - brought

    @cached_property
    def kept(self) -> frozenset[str]:
        """State whose copies, made within the call, are kept after it."""
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
        found: dict[str, list[str]] = {value.name: [] for value in self.values}
        for task in self.tasks:
            for name in task.inputs:
                found[name].append(task.name)
        return {name: tuple(tasks) for name, tasks in found.items()}

    @cached_property
    def mutated(self) -> frozenset[str]:
        """Inputs and state that change during a call, so that no copy of them outlives it."""
        return frozenset(target for _, target in self.updates)

    @cached_property
    def results(self) -> frozenset[str]:
        """Values that outlive a call: outputs, and what is written back."""
        return frozenset(self.outputs) | {made for made, _ in self.updates}

    def with_tasks(self, tasks: Sequence[Task], **changes: Any) -> Graph:
        """The same with these tasks and other `changes`, without values that nothing makes; those that lay in the
        memory of one have their own."""
        made = replace(self, tasks=tuple(tasks), **changes)
        there = {*made.inputs, *made.state, *(name for task in tasks for name in task.outputs)}
        values = (value for value in made.values if value.name in there)
        own = tuple(
            value if value.storage in there else replace(value, storage=value.name) for value in values
        )
        return replace(made, values=own).check()

    def networkx(self) -> networkx.DiGraph:
        """The dependency graph: an edge for each value read and each `after`, with the bytes that pass."""
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
        """Return self, or raise PlanError naming the first thing that makes this no graph."""
        for text in chain(_wrong_names(self), _wrong_tasks(self), _wrong_state(self)):
            raise PlanError(f"graph {self.name!r} is not well formed: {text}")
        return self

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [("task", "target", "reads", "makes", "module")]
        for task in self.tasks:
            made = ", ".join(f"{name}{list(self.value[name].shape)}" for name in task.outputs)
            rows.append((task.name, task.target, ", ".join(task.inputs), made, task.module))
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
    for name in (*graph.outputs, *(made for made, _ in graph.updates)):
        if name not in ready:
            yield f"nothing makes the output {name!r}"


def _wrong_state(graph: Graph) -> Iterator[str]:
    for name in (*graph.changing, *graph.carried, *graph.streamed):
        if name not in graph.state:
            yield f"{name!r} is said to change from call to call, or to stay at home, but is no state"
    for value in graph.values:
        whole = graph.value.get(value.slice.of) if value.slice else None
        if value.slice and (whole is None or value.slice.shape(whole.shape) != value.shape):
            yield f"{value.name!r} is no part of {value.slice.of!r}"
    held = dict.fromkeys(graph.flat, 0)
    for made, target in graph.updates:
        if target in graph.carried and made not in graph.producer:
            yield f"{made!r}, the new value of the carried state {target!r}, is made by no task; copy it"
        if made in held:
            if not graph.value[target].bytes:
                yield f"{target!r}, which is empty, has no piece of {made!r}"
            held[made] += room(graph.value[target])
    for name, count in held.items():
        if graph.value[name].shape != (count,):
            yield f"{name!r} is not as long as the states whose new values it holds"
