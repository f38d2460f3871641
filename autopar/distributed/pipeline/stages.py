"""The stages of a model as modules, one or more for each process of a pipeline."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from .units import Units, writes


class StageModule(fx.GraphModule):
    """Consecutive units of a model: `stage(*received, **inputs)`.

    received: the tensors from the previous stage; none for the first.
    inputs: the model's inputs by name, of which it takes those in `needs`.

    Returns a tuple of the tensors to send on, values for later stages included; for the last stage, the tensors in the
    model's output (`answer`). Parameters and buffers are the model's own objects under the model's own paths (`paths`
    has their other paths): the state dicts of all stages together are that of the model.
    """

    needs: tuple[str, ...]
    paths: dict[str, list[str]]

    def __init__(self, units: Units, first: int, stop: int, device: torch.device) -> None:
        root, graph, state = nn.Module(), fx.Graph(), dict[str, fx.Node]()
        is_last = stop == len(units.nodes)
        nodes = [node for unit in units.nodes[first:stop] for node in unit]
        received = units.crossing(first)
        returned: Any = pytree.tree_leaves(units.output.args[0]) if is_last else units.crossing(stop)
        needed = units.needed([*nodes, *([units.output] if is_last else [])], [*nodes, *received])
        needs = tuple(node.name for node in needed if node.op == "placeholder")
        made = _given(graph, received, needs, units, any(map(_in_place, nodes)))
        for node in units.graph.graph.nodes:
            if node.op == "placeholder" or not (node in needed or node in nodes):
                continue
            if node.op == "get_attr":
                state[str(node.target)] = node
                _own(root, str(node.target), units.tensor(node))
            made[node] = graph.node_copy(node, made.__getitem__)
            made[node].args, made[node].kwargs = located((made[node].args, made[node].kwargs), device)
            if node.target is torch.ops.aten.view.default:
                # What was received lies in one piece, which the capture may not have seen.
                made[node].target = torch.ops.aten.reshape.default
        tensors = [made[leaf] for leaf in returned if isinstance(leaf, fx.Node)]
        # What is sent must lie in one piece.
        graph.output(
            tuple(tensors if is_last else [graph.call_method("contiguous", (end,)) for end in tensors])
        )
        super().__init__(root, graph, class_name=f"{type(units.model).__name__}Stage")
        self.needs = needs
        self.paths = {path: units.paths.get(id(units.tensor(node)), []) for path, node in state.items()}
        self._leaves = [None if isinstance(leaf, fx.Node) else leaf for leaf in returned] if is_last else []
        self._tensors = [at for at, leaf in enumerate(returned) if isinstance(leaf, fx.Node)]
        self._spec = units.out_spec
        self.train(units.model.training)

    def answer(self, output: Any) -> Any:
        """Return the model's output, made of the output of the last stage."""
        leaves = list(self._leaves)
        for at, leaf in zip(
            self._tensors, output if isinstance(output, (tuple, list)) else (output,), strict=True
        ):
            leaves[at] = leaf
        return pytree.tree_unflatten(leaves, self._spec)


def _given(
    graph: fx.Graph, received: tuple[fx.Node, ...], needs: tuple[str, ...], units: Units, copied: bool
) -> dict[fx.Node, fx.Node]:
    """Return the nodes for what the stage receives, by the nodes they replace.

    `copied`: copy it first, because it may be written in place, which autograd refuses for views.
    """
    made: dict[fx.Node, fx.Node] = {}
    tensors, inputs = graph.placeholder("*received"), graph.placeholder("**inputs")
    for at, node in enumerate(received):
        made[node] = graph.call_function(operator.getitem, (tensors, at))
        if copied:
            made[node] = graph.call_function(torch.ops.aten.clone.default, (made[node],))
    for node in units.inputs:
        if node.name in needs:
            made[node] = graph.call_function(operator.getitem, (inputs, node.name))
    return made


def _in_place(node: fx.Node) -> bool:
    """Return True if an operator writes to a value made by another one."""
    return writes(node) and any(source.op == "call_function" for source in node.all_input_nodes)


def _own(root: nn.Module, path: str, tensor: torch.Tensor) -> None:
    owner, (*parents, name) = root, path.split(".")
    for parent in parents:
        if parent not in owner._modules:
            owner.add_module(parent, nn.Module())
        owner = owner.get_submodule(parent)
    if isinstance(tensor, nn.Parameter):
        owner.register_parameter(name, tensor)
    else:
        owner.register_buffer(name, tensor)


def located(arguments: Any, device: torch.device) -> Any:
    """Return the arguments with `device` in place of the device of capture."""
    return map_aggregate(arguments, lambda leaf: device if isinstance(leaf, torch.device) else leaf)
