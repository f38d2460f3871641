"""Pieces of which one kernel computes calls of many sizes: their sizes as functions of the shapes of their inputs, and
their export with axes of any length."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import sympy
import torch
from torch import fx

from ...ir.graph import Value
from ...ir.open_size import OpenSize

Axes: TypeAlias = tuple[Mapping[int, str], ...]
"""For each input, the axes whose length depends on the sizes of a call, each with an expression for it."""

LEAST = 2
"""Least length of such an axis: torch exports graphs that need not hold for shorter ones."""

_FUNCTIONS = {
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "IntTrueDiv": operator.truediv,
    "Mod": operator.mod, "PythonMod": operator.mod,
}  # fmt: skip


def axes_of(value: Value, symbols: Sequence[sympy.Expr]) -> dict[int, str]:
    """Return the axes of a value whose length depends on the sizes of a call. `symbols`: expressions by place."""
    return {
        axis: f"{symbols[size.place]}, {size.share}"
        for axis, size in enumerate(value.open[:-1])
        if isinstance(size, OpenSize)
    }


class Sizes:
    """The nodes of a graph that compute sizes of a call from its inputs."""

    def __init__(self, graph: fx.Graph, symbols: Sequence[sympy.Expr]) -> None:
        self._graph, self._symbols = graph, symbols
        self._sources: dict[sympy.Expr, tuple[fx.Node, int]] = {}
        self._nodes: dict[sympy.Expr, fx.Node] = {}

    def given(self, node: fx.Node, value: Value) -> None:
        """Note an input of the graph."""
        for axis, size in enumerate(value.open[:-1]):
            if isinstance(size, OpenSize) and size.share == (1, 1):
                self._sources.setdefault(self._symbols[size.place], (node, axis))

    def node(self, size: OpenSize) -> fx.Node:
        """Return the node of a size. Raises ValueError if the inputs do not tell it."""
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


Bounds: TypeAlias = dict[str, tuple[int, int]]
"""The least and the greatest length for each expression."""


def bounds_of(made: torch.export.ExportedProgram, axes: Axes) -> Bounds:
    """Return the lengths for which an exported piece holds. Raises ValueError if it asks for more: that lengths are
    equal, or one alone."""
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
