"""Floats and counts that vary from call to call. Dynamo passes each float as a tensor without axes, from which the
graph takes the number."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import sympy
import torch
from torch import fx

from .dynamo_private import holds_number, source_of
from .refusals import Untraceable
from .symbols import OPEN, computed, symbols_of

T = TypeVar("T")
_TOTAL = frozenset(
    (operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul, operator.neg)
)
"""Operators of numbers that raise no error for any."""
_OF_A_TENSOR = re.compile(r"\.(size|stride|storage_offset)\(\)")


def numbered(module: fx.GraphModule) -> tuple[int, ...]:
    """Let a graph of Dynamo's take floats as numbers; return their positions in its arguments."""
    found = []
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        taken = list(node.users)
        if not holds_number(node) or not taken or any(user.target != "item" for user in taken):
            continue
        node.meta["example_value"] = taken[0].meta["example_value"]
        for user in taken:
            user.replace_all_uses_with(node)
            module.graph.erase_node(user)
        found.append(position)
    if found:
        module.recompile()
    return tuple(found)


def open_or_fixed(capture: Callable[[], T], module: fx.GraphModule) -> T:
    """Return what `capture` makes of a graph of Dynamo's: with its floats and counts open if it can, else for these
    values."""
    try:
        return capture()
    except Exception as error:
        # Not all that torch can trace with a number it can trace with a symbol. What is not its own error holds for all
        # numbers.
        refused = isinstance(error, Untraceable) and error.__cause__ is None
        if refused or not _fixed(module):
            raise
        return capture()


def _fixed(module: fx.GraphModule) -> bool:
    """Let a graph hold for these values of its floats and counts alone, by guards; return whether it has any."""
    known: dict[fx.Node, Any] = {}
    for node in filter(_varies, module.graph.find_nodes(op="placeholder")):
        number = node.meta["example_value"]
        known[node] = node.meta["example_value"] = (
            float(number) if isinstance(number, torch.SymFloat) else int(number)
        )
        # AOTAutograd makes a symbol of an integer that is an argument.
        for user in list(node.users):
            user.args, user.kwargs = fx.node.map_arg(
                (user.args, user.kwargs), lambda each: known.get(each, each)
            )
    if known:
        module.recompile()
    return bool(known)


def _varies(node: fx.Node) -> bool:
    """Return True for the placeholder of a number that is not the size of a tensor."""
    number = node.meta.get("example_value")
    if isinstance(number, torch.SymFloat):
        return True
    return isinstance(number, torch.SymInt) and not _OF_A_TENSOR.search(source_of(node))


def arithmetic(module: fx.GraphModule) -> dict[sympy.Expr, fx.Node]:
    """Return the nodes of a graph of Dynamo's that compute numbers from floats, or floats, by their expressions."""
    made: dict[sympy.Expr, fx.Node] = {}
    # For each number, whether it depends on a float.
    known: dict[fx.Node, bool] = {}
    for node in module.graph.nodes:
        number = node.meta.get("example_value")
        if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            continue
        if node.op == "placeholder":
            known[node] = isinstance(number, (torch.SymFloat, float))
        elif node.op == "call_function" and all(each in known for each in node.all_input_nodes):
            made_of = any(known[each] for each in node.all_input_nodes)
            known[node] = made_of or isinstance(number, (torch.SymFloat, float))
            if known[node] and isinstance(number, (torch.SymInt, torch.SymFloat)):
                made.setdefault(number.node.expr, node)
    return made


def calculator(module: fx.GraphModule, given: Sequence[Any]) -> Callable[[fx.Node], Any]:
    """Return a function from a node of `arithmetic` to its number in a call with these arguments, as Python computes
    it. Sums, products and quotients of sympy's, which it orders as it likes, may be others.

    The function raises ArithmeticError where Python raises an error.
    """
    known: dict[fx.Node, Any] = dict(zip(module.graph.find_nodes(op="placeholder"), given))

    def number(node: fx.Node) -> Any:
        if node not in known:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), number)
            known[node] = computed(node.target, *args, **kwargs)  # type: ignore[arg-type]
        return known[node]

    return number


class Counts:
    """Numbers of a call that no task reads, such as a model's count of its calls, and the results computed from these.

    module: a graph of Dynamo's. inputs: the nodes of its arguments in the functional graph. values: the `open` ones
    of that graph. unread: positions of the numbers which no task reads, and no result but by sums and products.
    """

    def __init__(
        self, module: fx.GraphModule, inputs: Sequence[fx.Node], values: Mapping[fx.Node, Any]
    ) -> None:
        given = module.graph.find_nodes(op="placeholder")
        fakes = [node.meta.get("example_value") for node in given]
        idle = {
            at: inputs[at] for at, fake in enumerate(fakes) if isinstance(fake, OPEN) and not inputs[at].users
        }
        end: Any = module.graph.output_node()
        results = {place: item for place, item in enumerate(end.args[0]) if isinstance(item, fx.Node)}
        needed = {place: _summed(node) for place, node in results.items()}
        read = [value for node, value in values.items() if node not in idle.values()]
        read += [node.meta.get("example_value") for place, node in results.items() if not needed[place]]
        known = set[sympy.Symbol]().union(*map(symbols_of, read))
        self.unread = frozenset(at for at in idle if not symbols_of(fakes[at]) & known)
        unread = {given[at] for at in self.unread}
        self._places = {place: node for place, node in results.items() if needed[place] & unread}
        nodes = frozenset[fx.Node]().union(*(needed[place] for place in self._places))
        self._taken = [at for at, node in enumerate(given) if node in nodes]
        self._compute = _formula(module, nodes, [*self._places.values()])

    def fill(self, results: list[Any], args: Sequence[Any]) -> list[Any]:
        """Put the numbers of a call with these arguments in the results; return these."""
        if self._places:
            for place, number in zip(self._places, self._compute(*[args[at] for at in self._taken])):
                results[place] = number
        return results


def _summed(node: fx.Node) -> frozenset[fx.Node]:
    """Return the nodes by which a graph of Dynamo's computes a number from its arguments by sums and products alone;
    empty if it computes it otherwise. Sums and products raise no errors, so that they may as well be computed last."""
    needed, pending = set[fx.Node](), [node]
    while pending:
        each = pending.pop()
        if each in needed:
            continue
        number = each.op == "placeholder" and isinstance(each.meta.get("example_value"), OPEN)
        if not number and (each.op != "call_function" or each.target not in _TOTAL):
            return frozenset()
        needed.add(each)
        pending += each.all_input_nodes
    return frozenset(needed)


def _formula(
    module: fx.GraphModule, nodes: Collection[fx.Node], wanted: Sequence[fx.Node]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function from the placeholders among `nodes` of a graph of Dynamo's to the numbers of `wanted`."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if node in nodes:
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in wanted))
    compute: Callable[..., tuple[Any, ...]] = fx.GraphModule({}, graph).forward
    return compute


def numbers(args: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the arguments of a call with the numbers of floats instead of their tensors."""
    given = list(args)
    for position in positions:
        given[position] = given[position].item()
    return given


def taking(call: Callable[..., T], positions: Sequence[int]) -> Callable[..., T]:
    """Return a function for Dynamo's arguments, which calls `call` with numbers instead of the tensors of floats."""
    return (lambda *args: call(*numbers(args, positions))) if positions else call
