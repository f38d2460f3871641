"""The tasks of a piece as an `fx.GraphModule` of ATen calls, which libraries compile (`module_of`), and its export.

One kernel may serve calls of many sizes. Its module then computes the sizes from the shapes of its inputs,
and is exported with axes of any length.
"""

from __future__ import annotations

import ast
import copy
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from ...ir.graph import Argument, Const, Graph, Ref, Value
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


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "IntTrueDiv": operator.truediv, "Mod": operator.mod, "PythonMod": operator.mod,
    "Eq": operator.eq, "Ne": operator.ne,
}  # fmt: skip
_PLAIN = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.Load, ast.operator, ast.unaryop,
    ast.cmpop,
)  # fmt: skip


def value_of(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of the text of an expression in sizes. Raises ValueError if it is no plain arithmetic or has
    unknown names."""
    tree = ast.parse(expression, mode="eval")
    for node in ast.walk(tree):
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if not (call or isinstance(node, _PLAIN)):
            raise ValueError(f"{expression} is no plain arithmetic")
    try:
        return eval(compile(tree, expression, "eval"), {"__builtins__": {}}, {**_FUNCTIONS, **names})
    except NameError as error:
        raise ValueError(f"{expression}: {error}") from None


def module_of(
    piece: Piece,
    program: Program,
    graph: Graph,
    device: torch.device,
    state: Mapping[str, Any],
    symbols: Sequence[str] = (),
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """Return the module of a piece, and the positions in `piece.reads` of its arguments.

    The tensors of `state` are attributes of the module; all else that the piece reads is an argument. The
    module returns a tuple of the piece's outputs. With `symbols`, the sizes by place, it serves calls of all
    sizes, else of one set: `meta["axes"]` are those of its arguments (`Axes`). `meta["device"]` is the device. Raises
    ValueError if a size is not a function of the shapes of the arguments.
    """
    root, code = nn.Module(), fx.Graph()
    sizes, axes = _Sizes(code, symbols), []
    nodes: dict[str, fx.Node] = {}
    takes = []
    for position, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name not in state:
            takes.append(position)
            nodes[name] = code.placeholder(f"arg{position}")
            if symbols:
                sizes.note(nodes[name], graph.value[name])
                axes.append(_axes_of(graph.value[name], symbols))
    for number, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name in state:
            root.register_buffer(f"state{number}", state[name].detach())
            nodes[name] = code.get_attr(f"state{number}")

    def argument(item: Argument) -> Any:
        if isinstance(item, Ref):
            return nodes[item.value]
        if isinstance(item, Const):
            return resolve.constant(item.text, device)
        if isinstance(item, tuple):
            return [argument(part) for part in item]
        if isinstance(item, OpenSize):
            # The code that fx generates for a module cannot name an `OpenSize`.
            return sizes.node(symbols[item.place]) if symbols else int(item)
        return item

    for name in piece.tasks:
        task = graph.task[name]
        call = code.call_function(
            body(task) or resolve.target(task.target),
            tuple(map(argument, task.args)),
            {key: argument(item) for key, item in task.kwargs},
        )
        for index, value in enumerate(task.outputs):
            nodes[value] = code.call_function(operator.getitem, (call, index)) if task.unpack else call
    code.output(tuple(nodes[program.buffer[name].value] for name in piece.writes))
    module = fx.GraphModule(root, code, "Piece")
    module.graph.lint()
    module.meta["device"] = device
    if any(axes):
        module.meta["axes"] = tuple(axes)
    return module.eval(), tuple(takes)


def _axes_of(value: Value, symbols: Sequence[str]) -> dict[int, str]:
    """Return the axes of a value whose length depends on the sizes of a call. `symbols`: expressions by place."""
    return {
        axis: str(symbols[size.place])
        for axis, size in enumerate(value.open[:-1])
        if isinstance(size, OpenSize)
    }


class _Sizes:
    """The nodes of a graph that compute sizes of a call from its inputs."""

    def __init__(self, graph: fx.Graph, symbols: Sequence[str]) -> None:
        self._graph, self._symbols = graph, symbols
        self._sources: dict[str, tuple[fx.Node, int]] = {}
        self._nodes: dict[str, fx.Node] = {}

    def note(self, node: fx.Node, value: Value) -> None:
        """Note the sizes that are lengths of an input of the graph."""
        for axis, size in enumerate(value.open[:-1]):
            if isinstance(size, OpenSize):
                self._sources.setdefault(self._symbols[size.place], (node, axis))

    def node(self, expression: str) -> fx.Node:
        """Return the node that computes a size. Raises ValueError if the inputs do not determine it."""
        if expression not in self._nodes:
            if expression in self._sources:
                node = self._graph.call_function(torch.ops.aten.sym_size.int, self._sources[expression])
            else:
                node = self._computed(expression)
            self._nodes[expression] = node
        return self._nodes[expression]

    def _computed(self, expression: str) -> fx.Node:
        names = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)} - {
            *_FUNCTIONS
        }
        if expression in names:
            raise ValueError(f"the size {expression} is no function of the shapes of its inputs")
        result: fx.Proxy = value_of(expression, {name: fx.Proxy(self.node(name)) for name in names})
        return result.node


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module of the same code, whose graph may be changed, on the same tensors and `meta`."""
    twin = fx.GraphModule(module, copy.deepcopy(module.graph))
    twin.meta = module.meta
    return twin


def exported(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """Export a piece; with axes of any length, `module.meta["bounds"]` are the `Bounds` for which that holds. Raises
    ValueError if the export holds for one set of sizes only, and the errors of `torch.export`."""
    axes: Axes = module.meta.get("axes", ())
    shapes = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) or None for each in axes) or None
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    if axes:
        module.meta["bounds"] = bounds_of(program, axes)
    return program


def bounds_of(program: torch.export.ExportedProgram, axes: Axes) -> Bounds:
    """Return the lengths for which an exported piece holds. Raises ValueError if it holds only where two
    lengths are equal, or for a single length."""
    ours: dict[str, str] = {}
    bounds: Bounds = {}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for name, varying in zip(program.graph_signature.user_inputs, axes):
        for axis, expression in varying.items():
            length = nodes[str(name)].meta["val"].shape[axis]
            if not isinstance(length, torch.SymInt):
                raise ValueError(f"its kernel would hold for the length {length} alone")
            if ours.setdefault(str(length), expression) != expression:
                raise ValueError(f"its kernel would hold where {expression} is {ours[str(length)]} alone")
            limits = program.range_constraints.get(length.node.expr)
            if limits is not None:
                most = int(limits.upper) if limits.upper.is_Integer else sys.maxsize
                before = bounds.get(expression, (LEAST, sys.maxsize))
                bounds[expression] = max(before[0], int(limits.lower)), min(before[1], most)
    return bounds


def fits(
    shapes: Sequence[Sequence[int]], examples: Sequence[Sequence[int]], axes: Axes, bounds: Bounds
) -> bool:
    """Return True if a kernel for inputs of the shapes `examples` holds for inputs of these shapes."""
    lengths: dict[str, int] = {}
    for shape, example, varying in zip(shapes, examples, axes):
        for axis, (length, size) in enumerate(zip(shape, example)):
            if axis not in varying:
                if length != size:
                    return False
                continue
            least, most = bounds.get(varying[axis], (LEAST, sys.maxsize))
            if not least <= length <= most or lengths.setdefault(varying[axis], length) != length:
                return False
    return True
