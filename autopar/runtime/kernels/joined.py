"""Products of one input with several weights, such as queries, keys and values, computed as one product.

Threads then meet once instead of several times (docs/kernels.md).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp

_aten = torch.ops.aten
FEW, MANY = 16, 256
"""Rows of the input up to which it pays: if a library copies the parts of a result, and if it does not."""
_FOLLOWERS = (
    _aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.tanh.default, _aten.sigmoid.default,
)  # fmt: skip
"""Functions of single elements that libraries fuse with a product."""


@dataclass(frozen=True)
class Product:
    """A product with a weight, an attribute of the module. `turned`: the weight's shape is (in, out), as in `addmm`,
    instead of (out, in). The properties are those that the node has now."""

    node: fx.Node
    turned: bool

    @property
    def x(self) -> fx.Node:
        """The other factor, of shape (..., in)."""
        return self._argument(1 if self.turned else 0)

    @property
    def weight(self) -> fx.Node:
        """The node of the weight."""
        return self._argument(2 if self.turned else 1)

    @property
    def bias(self) -> fx.Node | None:
        """The node of the bias; None without one."""
        return self._argument(0 if self.turned else 2)

    def _argument(self, place: int) -> Any:
        arguments = self.node.args
        return arguments[place] if place < len(arguments) else None


def products(graph: fx.Graph) -> list[Product]:
    """Return the products with weights that are attributes of the module."""
    linear, addmm = (
        graph.find_nodes(op="call_function", target=target)
        for target in (_aten.linear.default, _aten.addmm.default)
    )
    found = [Product(node, False) for node in linear]
    found += [Product(node, True) for node in addmm if not node.kwargs]
    return [each for each in found if each.weight.op == "get_attr"]


def joined(
    module: fx.GraphModule, examples: Sequence[torch.Tensor], copied: bool
) -> dict[str, tuple[str, ...]]:
    """Join products of one input; return the names of the tensors that each new attribute consists of.

    copied: the library copies the parts of a result. Then the function of single elements that follows is joined, too.
    """
    groups: dict[Any, list[Product]] = {}
    most = FEW if copied else MANY
    ShapeProp(module).propagate(*examples)  # type: ignore[no-untyped-call]
    for each in products(module.graph):
        if each.x.meta["tensor_meta"].shape[:-1].numel() > most:
            continue
        weight, bias = _held(module, each.weight), each.bias
        width = weight.shape[1 if each.turned else 0]
        plain = bias is None or (bias.op == "get_attr" and _held(module, bias).shape == (width,))
        if weight.dim() == 2 and plain and not _laid_out(each.node):
            groups.setdefault((each.x, each.turned, bias is None), []).append(each)
    made: dict[_Parts, str] = {}
    for group in _apart(module.graph, [*groups.values()]):
        _join(module, group, made, copied)
    module.graph.eliminate_dead_code()
    module.recompile()
    return {name: parts for (_, parts), name in made.items()}


_Parts: TypeAlias = tuple[int, tuple[str, ...]]
"""The axis along which tensors are joined, and their names."""


def _parts(group: Sequence[Product]) -> _Parts:
    return int(group[0].turned), tuple(str(each.weight.target) for each in group)


def _apart(graph: fx.Graph, groups: Sequence[list[Product]]) -> list[list[Product]]:
    """Return the groups whose weights are read by such groups alone, as those of a layer that is applied several times:
    so there are no more copies of a weight than before."""
    of = {each.node: _parts(group) for group in groups for each in group}
    readers: dict[str, set[Any]] = {}
    for node in graph.find_nodes(op="get_attr"):
        readers.setdefault(str(node.target), set()).update(of.get(user, user) for user in node.users)
    return [
        group
        for group in groups
        for parts in (_parts(group),)
        if 1 < len(group) == len({*parts[1]}) and all(readers[name] == {parts} for name in parts[1])
    ]


def together(module: fx.GraphModule, names: Sequence[str], turned: bool) -> torch.Tensor:
    """Return the weight, of shape (out, in), of a product with these weights of a module."""
    weights = [getattr(module, name) for name in names]
    weights = [weight.t() if turned else weight for weight in weights]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _join(module: fx.GraphModule, group: Sequence[Product], made: dict[_Parts, str], followed: bool) -> None:
    first, graph = group[0], module.graph
    biases = [each.bias for each in group if each.bias is not None]
    with graph.inserting_before(first.node):
        weight = _attribute(module, _parts(group), made)
        bias = _attribute(module, (0, tuple(str(each.target) for each in biases)), made) if biases else None
        arguments = (bias, first.x, weight) if first.turned else (first.x, weight, bias)
        whole = graph.create_node("call_function", first.node.target, arguments)
        nodes = [each.node for each in group]
        while followed and (users := _followers(nodes)):
            following = users[0]
            whole = graph.create_node(
                "call_function", following.target, (whole, *following.args[1:]), following.kwargs
            )
            nodes = users
        sizes = [_held(module, each.weight).shape[int(each.turned)] for each in group]
        parts = graph.call_function(_aten.split_with_sizes.default, (whole, sizes, -1))
        for number, node in enumerate(nodes):
            node.replace_all_uses_with(graph.call_function(operator.getitem, (parts, number)))


def _attribute(module: fx.GraphModule, parts: _Parts, made: dict[_Parts, str]) -> fx.Node:
    """Return a node of the tensor that consists of these attributes."""
    if parts not in made:
        made[parts] = f"joined{len(made)}"
        axis, names = parts
        module.register_buffer(made[parts], torch.cat([getattr(module, name) for name in names], axis))
    return module.graph.get_attr(made[parts])


def _followers(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the only users of nodes if they are the same function of single elements; none otherwise."""
    users = [*chain.from_iterable(node.users for node in nodes)]
    first = users[0] if users else None
    if first is None or first.target not in _FOLLOWERS or any(len(node.users) != 1 for node in nodes):
        return []
    alike = all(
        (user.target, user.args, user.kwargs) == (first.target, (node, *first.args[1:]), first.kwargs)
        for node, user in zip(nodes, users)
    )
    return users if alike and not any(_laid_out(user) for user in users) else []


def _held(module: fx.GraphModule, node: Any) -> torch.Tensor:
    held: torch.Tensor = getattr(module, str(node.target))
    return held


def _laid_out(node: fx.Node) -> bool:
    """Return True if the strides or the memory of a value matter: it or a view of it is returned, and must not share
    memory with others, or is read by an operator on strides, such as `as_strided`."""
    return any(
        user.op == "output" or (_view(user) and (_name(user) not in _VIEWS or _laid_out(user)))
        for user in node.users
    )


_VIEWS = frozenset({
    "chunk", "contiguous", "dropout", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "slice",
    "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze",
})  # fmt: skip
"""Views that are right for any strides."""


def _view(node: fx.Node) -> bool:
    # Dropout that does nothing returns its input.
    return _name(node) in ("getitem", "dropout") or bool(getattr(node.target, "is_view", False))


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", "")))
