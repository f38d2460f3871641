"""Numbers that vary from call to call, floats and counts: sizes of a call. Dynamo passes each float as a tensor without
axes, from which the graph takes the number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sympy
import torch
from torch import fx

from .dynamo_private import holds_number, of_floats, source_of
from .refusals import Untraceable
from .symbols import OPEN
from .torch_private import decisions

T = TypeVar("T")
_OF_A_TENSOR = re.compile(r"\.(size|stride|storage_offset)\(\)")


def numbered(module: fx.GraphModule) -> tuple[int, ...]:
    """Let a graph of Dynamo's take floats as numbers; return their positions in its arguments."""
    positions = []
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        taken = list(node.users)
        if not holds_number(node) or not taken or any(user.target != "item" for user in taken):
            continue
        node.meta["example_value"] = taken[0].meta["example_value"]
        for user in taken:
            user.replace_all_uses_with(node)
            module.graph.erase_node(user)
        positions.append(position)
    if positions:
        module.recompile()
    return tuple(positions)


def numbers(args: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the arguments of a call with the numbers of floats instead of their tensors."""
    plain = list(args)
    for position in positions:
        plain[position] = plain[position].item()
    return plain


def taking(call: Callable[..., T], positions: Sequence[int]) -> Callable[..., T]:
    """Return a function for Dynamo's arguments, which calls `call` with numbers instead of the tensors of floats."""
    return (lambda *args: call(*numbers(args, positions))) if positions else call


def fixable(error: Exception, module: fx.GraphModule) -> bool:
    """Return True if a graph of Dynamo's that could not be taken may be taken for these values of its numbers alone: it
    has some that are open, and the error is not autopar's own, which holds for all."""
    if isinstance(error, Untraceable) and error.__cause__ is None:
        return False
    return any(map(of_floats, decisions(module))) or any(
        holds_number(node)
        or isinstance(number := node.meta.get("example_value"), torch.SymFloat)
        or (isinstance(number, torch.SymInt) and not _OF_A_TENSOR.search(source_of(node)))
        for node in module.graph.find_nodes(op="placeholder")
    )


class Numbers:
    """The numbers that a graph of Dynamo's computes from those among its arguments, as Python computes them. sympy, by
    which torch knows them, reorders sums and products.

    places: for each result of the graph that is one of them, its place among these.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in module.graph.nodes:
            number = isinstance(node.meta.get("example_value"), OPEN)
            computed = number and node.op == "call_function" and copies.keys() >= {*node.all_input_nodes}
            if computed or node.op == "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                # Else it refers to tensors, which could then not be swapped.
                copies[node].meta.clear()
        symbols = (node for node in copies if isinstance(node.meta.get("example_value"), OPEN))
        index = {node: number for number, node in enumerate(symbols)}
        graph.output(tuple(copies[node] for node in index))
        self._compute: Callable[..., tuple[Any, ...]] = fx.GraphModule({}, graph).forward
        self._symbols = [node.meta["example_value"].node.expr for node in index]
        end: Any = module.graph.output_node()
        self.places = {place: index[item] for place, item in enumerate(end.args[0]) if item in index}

    def of(self, args: Sequence[Any]) -> dict[sympy.Expr, Any]:
        """Return the numbers of a call with these arguments, by their expressions. Raises Python's errors, and
        ArithmeticError where the same expression stands for several numbers, as 0 for `t - t` of an infinite `t`."""
        known: dict[sympy.Expr, Any] = {}
        for symbol, number in zip(self._symbols, self._compute(*args)):
            constant = isinstance(symbol, sympy.Expr) and not symbol.free_symbols
            if not math.isclose(known.setdefault(symbol, float(symbol) if constant else number), number):
                raise ArithmeticError(f"torch takes two numbers of this call for {symbol}")
        return known

    def fill(self, results: list[Any], args: Sequence[Any]) -> list[Any]:
        """Put the numbers of a call with these arguments in the results; return these."""
        if self.places:
            computed = self._compute(*args)
            for place, at in self.places.items():
                results[place] = computed[at]
        return results
