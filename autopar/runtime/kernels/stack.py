"""`Stack`: a library that compiles several tasks; `Kernel`: the compiled form of one piece; and the tasks of a piece as
an `fx.GraphModule` of ATen calls, as these libraries accept (`module_of`)."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx, nn

from ...ir.graph import Argument, Const, Graph, Ref, Task
from ...ir.open_size import OpenSize
from ...ir.program import Piece, Program
from ...ops import resolve
from ...ops.composites import body
from .sizes import Axes, Bounds, Sizes, axes_of, bounds_of

_NUMPY = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


_BOUNDS = "bounds.json"


class Refusal(Exception):
    """A library cannot compile a piece, or its kernel is wrong; the text is one sentence with the reason.

    lacking: the operators, as targets of tasks, that its message names.
    """

    def __init__(self, text: str, lacking: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.lacking = lacking


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` takes the piece's reads at the positions `takes`, and returns its
    outputs."""

    stack: str
    call: Callable[..., Sequence[torch.Tensor]]
    takes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A compilation: a module of ATen calls on a `device`, for inputs like `examples`, with `threads`, as one of
    `lanes` in parallel. `folder` takes the result.

    weights: whether each input is a weight, whose memory stays the same from call to call.
    axes: those of each input whose length depends on the sizes of a call; none if it is for one set of sizes.
    """

    module: fx.GraphModule
    examples: Sequence[torch.Tensor]
    device: torch.device
    threads: int
    lanes: int
    folder: Path
    weights: tuple[bool, ...] = ()
    axes: Axes = ()


@dataclass(frozen=True, eq=False)
class Stack:
    """A library that compiles. `frozen` ones copy the weights into the kernel, in the layout best for the machine.

    missing: the reason why it cannot be used here as one sentence, or "".
    keeps: whether a task can be part of a piece.
    load: load the kernel from the folder. Raises any error.
    compile: compile into the folder, in a separate process, since tracing changes modules and flags shared by all
        threads of a process. Raises any error. None: `load` does all, without a folder.
    devices: types of torch devices that it compiles for; None: all.
    traces: whether `load` traces, so that no other call may run in this process meanwhile.
    open: whether it can compile one kernel for calls of all sizes.
    """

    name: str
    frozen: bool
    missing: Callable[[], str]
    keeps: Callable[[Task, Graph], bool]
    load: Callable[[Compilation], Callable[..., Any]]
    compile: Callable[[Compilation], None] | None = None
    devices: frozenset[str] | None = frozenset({"cpu"})
    traces: bool = False
    open: bool = False


def numpy_alone(task: Task, graph: Graph) -> bool:
    """Return True if all values that a task reads and makes have NumPy's dtypes."""
    return all(graph.value[name].dtype in _NUMPY for name in (*task.inputs, *task.outputs))


def module_of(
    piece: Piece,
    program: Program,
    graph: Graph,
    device: torch.device,
    state: Mapping[str, Any],
    symbols: Sequence[sympy.Expr] = (),
) -> tuple[fx.GraphModule, tuple[int, ...], Axes]:
    """Return the module of a piece, the positions in `piece.reads` of its arguments, and their axes of any length.

    The tensors of `state` are its attributes; all else that the piece reads is an argument. It returns a tuple of the
    piece's outputs. `symbols`: the sizes by place, for a module for all calls; without, it is for one set of sizes.
    Raises ValueError if a size is no function of the shapes of the arguments.
    """
    root, made = nn.Module(), fx.Graph()
    sizes, axes = Sizes(made, symbols), []
    nodes: dict[str, fx.Node] = {}
    takes = []
    for position, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name not in state:
            takes.append(position)
            nodes[name] = made.placeholder(f"arg{position}")
            if symbols:
                sizes.given(nodes[name], graph.value[name])
                axes.append(axes_of(graph.value[name], symbols))
    for number, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name in state:
            root.register_buffer(f"state{number}", state[name].detach())
            nodes[name] = made.get_attr(f"state{number}")

    def argument(item: Argument) -> Any:
        if isinstance(item, Ref):
            return nodes[item.value]
        if isinstance(item, Const):
            return resolve.constant(item.text, device)
        if isinstance(item, tuple):
            return [argument(part) for part in item]
        if isinstance(item, OpenSize):
            # In the code of a module it has no name.
            return sizes.node(item) if symbols else int(item)
        return item

    for name in piece.tasks:
        task = graph.task[name]
        call = made.call_function(
            body(task) or resolve.target(task.target),
            tuple(map(argument, task.args)),
            {key: argument(item) for key, item in task.kwargs},
        )
        for index, value in enumerate(task.outputs):
            nodes[value] = made.call_function(operator.getitem, (call, index)) if task.unpack else call
    made.output(tuple(nodes[program.buffer[name].value] for name in piece.writes))
    module = fx.GraphModule(root, made, "Piece")
    module.graph.lint()
    return module.eval(), tuple(takes), tuple(axes)


def exported(work: Compilation, module: fx.GraphModule) -> torch.export.ExportedProgram:
    """Export the module of a compilation. Raises ValueError if what is exported holds for one set of sizes alone, and
    the errors of `torch.export`."""
    axes: Any = None
    if any(work.axes):
        axes = tuple(dict.fromkeys(own, torch.export.Dim.DYNAMIC) or None for own in work.axes)
    with torch.no_grad():
        made = torch.export.export(module, tuple(work.examples), dynamic_shapes=axes)
    (work.folder / _BOUNDS).write_text(json.dumps(bounds_of(made, work.axes)))
    return made


def bounds(work: Compilation) -> Bounds:
    """Return the lengths for which the kernel of a compilation holds, where `exported` has limits for them."""
    path = work.folder / _BOUNDS
    return json.loads(path.read_text()) if path.exists() else {}
