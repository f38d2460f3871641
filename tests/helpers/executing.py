"""Graphs run task after task, and split graphs held against whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from capturing import joint

from autopar.capture import Captured
from autopar.ir.graph import PART, Graph
from autopar.session.compare import interpret
from autopar.transform.split import split


def execute(
    graph: Graph, captured: Captured, inputs: Sequence[Any] | None = None, seed: int = 0
) -> dict[str, Any]:
    """Every value of a graph by name, from its inputs (random ones in float64 by default) and the live state; each must
    be what its Value says."""
    if inputs is None:
        torch.manual_seed(1)
        inputs = [torch.randn(graph.value[name].shape, dtype=torch.float64) for name in graph.inputs]
    live: dict[str, Any] = dict(zip(graph.inputs, inputs, strict=True))
    state = captured.with_slices(graph).state
    live.update((name, owner[key].detach()) for name, (owner, key) in state.items())
    torch.manual_seed(seed)
    for task in interpret(graph, captured.calls, live, torch.device("cpu")):
        for name in task.outputs:
            value, item = graph.value[name], live[name]
            if isinstance(item, torch.Tensor):
                assert tuple(item.shape) == value.shape, name
                # A captured value may have the dtype that another device's kernel gives.
                if "#" in name or str(item.dtype) == f"torch.{value.dtype}":
                    assert str(item.dtype) == f"torch.{value.dtype}" and item.nbytes == value.bytes, name
                root = live[value.storage]
                shared = item.untyped_storage().data_ptr() == root.untyped_storage().data_ptr()
                assert shared or not item.numel() or task.target != PART, name
                assert shared or item.is_contiguous() or not name.endswith("#again"), name
    return live


def given(captured: Captured, args: tuple[Any, ...], kwargs: Any = None) -> list[torch.Tensor]:
    """The inputs of a captured graph: those of the call, and a random gradient for each output of a joint graph."""
    tensors = [item.detach() for item in captured.flatten(args, kwargs or {})]
    torch.manual_seed(3)
    for name in captured.graph.inputs[len(tensors) :]:
        value = captured.graph.value[name]
        tensors.append(torch.randn(value.shape).to(getattr(torch, value.dtype)))
    return tensors


def in_parts(
    model: Any, args: tuple[Any, ...], sizes: tuple[int, ...], *, trained: bool = False
) -> tuple[Captured, Graph]:
    """A captured call, differentiated if `trained`, and its graph split into parts of `sizes` rows, which gives the
    same."""
    with torch.set_grad_enabled(trained):
        captured = joint(model, args)
    whole = captured.graph
    parted = split(whole, sizes).check()
    assert (parted.outputs, parted.updates) == (whole.outputs, whole.updates)
    assert sum(task.flops for task in parted.tasks) == sum(task.flops for task in whole.tasks)
    assert split(whole, sizes) == parted
    inputs = given(captured, args)
    before, after = execute(whole, captured, inputs), execute(parted, captured, inputs)
    for name in (*whole.outputs, *(made for made, _ in whole.updates)):
        scale = max(before[name].abs().max().item(), 0.1) if before[name].is_floating_point() else 1
        torch.testing.assert_close(after[name] / scale, before[name] / scale, rtol=0, atol=1e-12)
    return captured, parted
