"""Graphs of forward and backward held against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from capturing import joint
from torch.utils import _pytree as pytree

from autopar.capture import Captured
from autopar.session.compare import interpret

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Error of a tensor that is allowed, max|Δ| ÷ max|reference|: a sum of parts may be in another order."""


def differentiable(captured: Captured) -> tuple[bool, ...]:
    """Of each output of the call whether it has a tangent."""
    outputs = captured.graph.outputs
    smooth = {outputs[index] for _, index in captured.tangents}
    return tuple(name in smooth for name in outputs[: len(outputs) - len(captured.gradients)])


def agrees(function: Callable[..., Any], args: Any, kwargs: Any = None, limit: float = 0.0) -> Captured:
    """Capture a call, then hold outputs, updates and gradients of its graph against those of eager.

    Each call starts from the same random state; `limit` takes the place of `LIMIT` where it is larger.
    """
    kwargs = kwargs or {}
    captured = joint(function, args, kwargs)
    graph = captured.graph
    tensors = captured.flatten(args, kwargs)
    tangents = dict(captured.tangents)
    names = [name for name in graph.inputs if name not in tangents]
    assert len(names) == len(tensors)
    live = {
        **dict(zip(names, tensors)),
        **{name: owner[key] for name, (owner, key) in captured.state.items()},
    }
    before = {name: tensor.detach().clone() for name, tensor in live.items()}

    torch.manual_seed(1)
    flat = [leaf for leaf in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    assert differentiable(captured) == tuple(leaf.requires_grad for leaf in flat)
    given = {name: _strided(torch.randn_like(flat[index])) for name, index in captured.tangents}
    wanted = {name: tensor for name, tensor in live.items() if tensor.requires_grad}
    expected: tuple[Any, ...] = (None,) * len(wanted)
    if given and wanted:
        roots = [flat[index] for index in tangents.values()]
        expected = torch.autograd.grad(roots, list(wanted.values()), list(given.values()), allow_unused=True)
    after = {name: captured.state[name][0][captured.state[name][1]] for name in captured.state}
    after = {name: tensor.detach().clone() for name, tensor in {**dict(zip(names, tensors)), **after}.items()}

    values: dict[str, Any] = {**before, **given}
    torch.manual_seed(1)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for task in interpret(graph, captured.calls, values, torch.device("cpu")):
            for name in task.outputs:
                like = graph.value[name]
                if like.dtype != "object":
                    made = values[name]
                    assert (tuple(made.shape), str(made.dtype)) == (like.shape, f"torch.{like.dtype}"), (
                        task.where
                    )

    def same(name: str, reference: torch.Tensor, what: str) -> None:
        made = values[name]
        assert (made.shape, made.dtype) == (reference.shape, reference.dtype), what
        if not torch.equal(made, reference.detach()):
            assert reference.is_floating_point(), what
            error = (made.double() - reference.double()).abs().max() / reference.double().abs().max()
            assert error <= max(limit, LIMIT[reference.dtype]), f"{what}: {error}"

    for index, (name, leaf) in enumerate(zip(graph.outputs, flat)):
        same(name, leaf, f"output {index}")
    for made, to in graph.updates:
        same(made, after[to], f"update of {to}")
    gradients = dict(captured.gradients)
    assert set(gradients) <= set(wanted)
    assert graph.outputs[len(flat) :] == tuple(gradients.values())
    for name, reference in zip(wanted, expected):
        if reference is None:
            assert name not in gradients, f"{name} has a gradient where eager has None"
        else:
            same(gradients[name], reference, f"gradient of {name}")
    return captured


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers by other strides, as what comes after may give them."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor
