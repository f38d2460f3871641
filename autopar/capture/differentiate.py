"""A recorded call differentiated: one fx graph of forward and backward, by AOTAutograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..composites import swap
from ..composites.draws import IN_PLACE
from .asked import Asked
from .private import differentiated
from .record import Record
from .refusals import Untraceable

_aten = torch.ops.aten


@dataclass(frozen=True)
class Joint:
    """What AOTAutograd made of a record of n inputs and m outputs.

    `inputs` are the n placeholders, `outputs` the m results. `tangents` pairs the index of an output with the
    placeholder of its gradient, `gradients` the index of an input with its gradient, `updates` the index of an
    input that is changed in place with its new value.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    tangents: tuple[tuple[int, fx.Node], ...]
    gradients: tuple[tuple[int, fx.Node], ...]
    updates: tuple[tuple[int, fx.Node], ...]


def differentiate(
    record: fx.GraphModule, tensors: list[torch.Tensor], names: list[str], asked: Asked
) -> Joint:
    """Differentiate a record, whose inputs are all placeholders, at these tensors; `names` are theirs.

    Each output is given memory of its own, so that it has its own gradient. Raises Untraceable for a change in
    place of a tensor that requires grad, or by one.
    """
    swap(record)
    _own(record.graph)
    given = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    graph = differentiated(Record(record, asked, _weights(tensors)), tuple(given), IN_PLACE)
    inputs: dict[int, fx.Node] = {}
    tangents: list[tuple[int, fx.Node]] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            kind, index = _meaning(node.meta["desc"])
            if kind == "PlainAOTInput":
                inputs[index] = node
            elif kind == "PlainAOTOutput":
                tangents.append((index, node))
            else:
                raise _changed(names[index])
    end = next(iter(reversed(graph.nodes)))
    outputs: dict[int, fx.Node] = {}
    gradients, updates = [], []
    for node, description in zip(end.args[0], end.meta["desc"]):
        if node is None:
            continue
        kind, index = _meaning(description)
        if kind == "PlainAOTOutput":
            outputs[index] = node.args[0] if node.target is _aten.clone.default else node
        elif kind == "InputMutationAOTOutput":
            if given[index].requires_grad:
                raise _changed(names[index])
            updates.append((index, node))
        else:
            if node.meta["val"].layout is not torch.strided:
                raise Untraceable(
                    f"the gradient of {names[index]} is sparse, of which no plan knows the size; "
                    "make its layer with sparse=False"
                )
            gradients.append((index, node))
    return Joint(
        graph,
        tuple(inputs[index] for index in range(len(given))),
        tuple(outputs[index] for index in range(len(outputs))),
        tuple(tangents),
        tuple(gradients),
        tuple(updates),
    )


def _changed(name: str) -> Untraceable:
    return Untraceable(
        f"forward changes {name} in place, which requires grad or is given what does; change a clone of it, or "
        "give it a value that is detached"
    )


def _own(graph: fx.Graph) -> None:
    """Return a clone of each result: AOTAutograd gives tensors that share memory one gradient between them."""
    end = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(end):
        clones = [graph.call_function(_aten.clone.default, (node,)) for node in end.args[0]]
    for clone, node in zip(clones, end.args[0]):
        clone.meta = {key: item for key, item in node.meta.items() if key != "val"}
    end.args = (tuple(clones),)


def _meaning(description: Any) -> tuple[str, int]:
    """What a placeholder or a result is for, and the index of the input or output that it is for."""
    for relation in ("output", "grad_of", "mutated_input"):
        inner = getattr(description, relation, None)
        if inner is not None:
            kind, index = _meaning(inner)
            return (type(description).__name__ if relation != "output" else kind), index
    kind = type(description).__name__
    if kind.startswith("SyntheticBase"):
        raise Untraceable(
            "a tensor is changed in place that shares its memory with another; pass a copy (clone)"
        )
    if kind not in ("PlainAOTInput", "PlainAOTOutput"):
        raise Untraceable(f"differentiation makes a {kind} of it, which no graph can hold")
    return kind, description.idx


def _weights(tensors: list[torch.Tensor]) -> tuple[bool, ...]:
    return tuple(
        tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        for tensor in tensors
    )
