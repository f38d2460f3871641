"""`Stack`: a library that compiles several tasks. `Kernel`: the compiled form of one piece. `module_of`: the
tasks of a piece as an `fx.GraphModule` of ATen calls, which these libraries accept.

One kernel may serve calls of many sizes. Its module then computes the sizes from the shapes of its inputs,
and is exported with axes of any length.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx, nn

from ...ir.graph import Argument, Const, Graph, Ref, Task, Value
from ...ir.open_size import OpenSize
from ...ir.program import Piece, Program
from ...ops import resolve
from ...ops.composites import body

Axes: TypeAlias = tuple[Mapping[int, str], ...]
"""For each input, the axes whose length depends on the sizes of a call, and the expression of each length."""

Bounds: TypeAlias = dict[str, tuple[int, int]]
"""The least and the greatest length for each expression."""

LEAST = 2
"""Least length of such an axis: a graph that torch exports may be wrong for shorter ones."""


def shortest(sizes: Iterable[float]) -> int:
    """Return the least of the sizes of a call, `LEAST` if there are none; its floats are no sizes."""
    return min((size for size in sizes if isinstance(size, int)), default=LEAST)


_FUNCTIONS = {
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "IntTrueDiv": operator.truediv,
    "Mod": operator.mod, "PythonMod": operator.mod,
}  # fmt: skip
_NUMPY = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_BOUNDS = "bounds.json"


class Refusal(Exception):
    """A library cannot compile a piece, or its kernel is wrong; the text is one sentence with the reason.

    lacking: the operators that the library's message names, as targets of tasks.
    passing: later calls try again.
    """

    def __init__(self, text: str, lacking: frozenset[str] = frozenset(), passing: bool = False) -> None:
        super().__init__(text)
        self.lacking, self.passing = lacking, passing


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` takes the piece's reads at the positions `takes`, and returns its
    outputs."""

    stack: str
    call: Callable[..., Sequence[torch.Tensor]]
    takes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Compilation:
    """A compilation: a module of ATen calls on a `device`, for inputs like `examples`, with `threads`
    threads, as one of `lanes` parallel lanes. The result goes into `folder`.

    weights: for each input, whether it is a weight, whose memory stays the same from call to call.
    axes: for each input, the axes whose length depends on the sizes of a call; empty for one set of sizes.
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
    """A library that compiles pieces. `frozen`: it copies the weights into the kernel, in the fastest layout.

    missing: why it cannot be used here, as one sentence, or "".
    keeps: whether a task can be part of a piece.
    load: loads the kernel from the folder. Raises any error.
    compile: compiles into the folder, in a separate process, since tracing changes modules and flags that all
        threads of a process share. Raises any error. If None, `load` does everything, without a folder.
    devices: types of torch devices that it compiles for; None: all.
    traces: whether `load` traces; no other call may then run in this process meanwhile.
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


def keeps_numpy(task: Task, graph: Graph) -> bool:
    """Return True for an ATen operator, or a composite of ATen operators, on NumPy's dtypes."""
    known = task.target.startswith("aten.") or body(task) is not None
    return known and all(graph.value[name].dtype in _NUMPY for name in (*task.inputs, *task.outputs))


def module_of(
    piece: Piece,
    program: Program,
    graph: Graph,
    device: torch.device,
    state: Mapping[str, Any],
    symbols: Sequence[sympy.Expr] = (),
) -> tuple[fx.GraphModule, tuple[int, ...], Axes]:
    """Return the module of a piece, the positions in `piece.reads` of its arguments, and their axes of any length.

    The tensors of `state` are attributes of the module; all else that the piece reads is an argument. The
    module returns a tuple of the piece's outputs. With `symbols`, the sizes by place, it serves calls of all
    sizes, else of one set. Raises ValueError if a size is not a function of the shapes of the arguments.
    """
    root, made = nn.Module(), fx.Graph()
    sizes, axes = _Sizes(made, symbols), []
    nodes: dict[str, fx.Node] = {}
    takes = []
    for position, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name not in state:
            takes.append(position)
            nodes[name] = made.placeholder(f"arg{position}")
            if symbols:
                sizes.given(nodes[name], graph.value[name])
                axes.append(_axes_of(graph.value[name], symbols))
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
            # The code that fx generates for a module cannot name an `OpenSize`.
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


def _axes_of(value: Value, symbols: Sequence[sympy.Expr]) -> dict[int, str]:
    """Return the axes of a value whose length depends on the sizes of a call. `symbols`: expressions by place."""
    return {
        axis: f"{symbols[size.place]}, {size.share}"
        for axis, size in enumerate(value.open[:-1])
        if isinstance(size, OpenSize)
    }


class _Sizes:
    """The nodes of a graph that compute sizes of a call from its inputs."""

    def __init__(self, graph: fx.Graph, symbols: Sequence[sympy.Expr]) -> None:
        self._graph, self._symbols = graph, symbols
        self._sources: dict[sympy.Expr, tuple[fx.Node, int]] = {}
        self._nodes: dict[sympy.Expr, fx.Node] = {}

    def given(self, node: fx.Node, value: Value) -> None:
        """Note the sizes that an input of the graph tells."""
        for axis, size in enumerate(value.open[:-1]):
            if isinstance(size, OpenSize) and size.share == (1, 1):
                self._sources.setdefault(self._symbols[size.place], (node, axis))

    def node(self, size: OpenSize) -> fx.Node:
        """Return the node that computes a size. Raises ValueError if the inputs do not determine it."""
        made, (rows, batch) = self._node(self._symbols[size.place]), size.share
        for function, number in ((operator.floordiv, batch), (operator.mul, rows)):
            if number != 1:
                made = self._graph.call_function(function, (made, number))
        return made

    def _node(self, expression: sympy.Expr) -> fx.Node:
        if expression not in self._nodes:
            if expression in self._sources:
                made = self._graph.call_function(torch.ops.aten.sym_size.int, self._sources[expression])
            else:
                made = self._computed(expression)
            self._nodes[expression] = made
        return self._nodes[expression]

    def _computed(self, expression: sympy.Expr) -> fx.Node:
        free = sorted(expression.free_symbols, key=str)
        if expression in free or {each.func.__name__ for each in expression.atoms(sympy.Function)} - {
            *_FUNCTIONS
        }:
            raise ValueError(f"the size {expression} is no function of the shapes of its inputs")
        function = sympy.lambdify(free, expression, [_FUNCTIONS])
        made: fx.Proxy = function(*(fx.Proxy(self._node(each)) for each in free))
        return made.node


def exported(work: Compilation, module: fx.GraphModule) -> torch.export.ExportedProgram:
    """Export the module of a compilation. Raises ValueError if the export holds for one set of sizes only,
    and the errors of `torch.export`."""
    axes: Any = None
    if any(work.axes):
        axes = tuple(dict.fromkeys(own, torch.export.Dim.DYNAMIC) or None for own in work.axes)
    with torch.no_grad():
        made = torch.export.export(module, tuple(work.examples), dynamic_shapes=axes)
    (work.folder / _BOUNDS).write_text(json.dumps(bounds_of(made, work.axes)))
    return made


def bounds(work: Compilation) -> Bounds:
    """Return the limits that `exported` found for the lengths of a compilation; empty if it wrote none."""
    path = work.folder / _BOUNDS
    return json.loads(path.read_text()) if path.exists() else {}


def bounds_of(made: torch.export.ExportedProgram, axes: Axes) -> Bounds:
    """Return the lengths for which an exported piece holds. Raises ValueError if it holds only where two
    lengths are equal, or for a single length."""
    ours: dict[str, str] = {}
    found: Bounds = {}
    nodes = {node.name: node for node in made.graph.find_nodes(op="placeholder")}
    for name, own in zip(made.graph_signature.user_inputs, axes):
        for axis, expression in own.items():
            length = nodes[str(name)].meta["val"].shape[axis]
            if not isinstance(length, torch.SymInt):
                raise ValueError(f"its kernel would hold for the length {length} alone")
            if ours.setdefault(str(length), expression) != expression:
                raise ValueError(f"its kernel would hold where {expression} is {ours[str(length)]} alone")
            held = made.range_constraints.get(length.node.expr)
            if held is not None:
                most = int(held.upper) if isinstance(held.upper, sympy.Integer) else sys.maxsize
                known = found.get(expression, (LEAST, sys.maxsize))
                found[expression] = max(known[0], int(held.lower)), min(known[1], most)
    return found


def fits(
    shapes: Sequence[Sequence[int]], examples: Sequence[torch.Tensor], axes: Axes, bounds: Bounds
) -> bool:
    """Return True if a kernel for inputs like `examples` holds for inputs of these shapes."""
    lengths: dict[str, int] = {}
    for shape, example, own in zip(shapes, examples, axes):
        for axis, (length, size) in enumerate(zip(shape, example.shape)):
            if axis not in own:
                if length != size:
                    return False
                continue
            least, most = bounds.get(own[axis], (LEAST, sys.maxsize))
            if not least <= length <= most or lengths.setdefault(own[axis], length) != length:
                return False
    return True
