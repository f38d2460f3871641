"""Execute a graph task by task on one device: the slow, plain meaning of a graph, to judge the fast one by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..ir.graph import Graph, Task
from ..ops import resolve as bind


def interpret(
    graph: Graph,
    calls: Mapping[str, Callable[..., Any]],
    values: dict[str, Any],
    device: torch.device,
) -> Iterator[Task]:
    """Execute each task into `values`, which holds the inputs and state, and yield it."""
    for task in graph.tasks:
        function = bind.target(task.target, calls)
        args = [bind.argument(a, values.__getitem__, device) for a in task.args]
        kwargs = {k: bind.argument(a, values.__getitem__, device) for k, a in task.kwargs}
        made = function(*args, **kwargs)
        for name, value in zip(task.outputs, made if task.unpack else (made,)):
            values[name] = value
        yield task
