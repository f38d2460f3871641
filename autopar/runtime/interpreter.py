"""Interpreter of a graph, task by task on one device: the reference for the fast path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..capture import autocast as casting
from ..ir.graph import Graph, Task
from ..ops import resolve as bind


def interpret(
    graph: Graph,
    calls: Mapping[str, Callable[..., Any]],
    values: dict[str, Any],
    device: torch.device,
) -> Iterator[Task]:
    """Run each task into `values`, which holds inputs and state, and yield it; without autograd and autocast, as lanes
    do."""
    for task in graph.tasks:
        with torch.no_grad(), casting.off({"cpu", device.type}):
            made = bind.called(task, bind.target(task.target, calls), values.__getitem__, device)
        for name, value in zip(task.outputs, made if task.unpack else (made,)):
            values[name] = value
        yield task
