"""The rounding of a graph's values, estimated by Monte Carlo arithmetic (Parker, 1997): a value that is zero in exact
arithmetic is as uncertain as what went into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..capture import Captured
from ..ir.graph import Task
from .compare import LIMIT, detached_copy, distance, interpret, widen

DRAWS = 4
"""Number of runs with other roundings."""


def spread(
    captured: Captured, start: Mapping[str, Any], names: Iterable[str], begin: Callable[[], None]
) -> dict[str, float]:
    """Return the largest change of each of the values `names` if every task rounds its inexact results otherwise.

    start: inputs, state and tangents by name. begin: puts random generators in the state of the call.
    """
    # The user's own loss is a task of a joint graph; its results, the tangents, are given.
    tasks = tuple(task for task in captured.graph.tasks if not start.keys() >= {*task.outputs})
    graph = replace(captured.graph, tasks=tasks)
    changes, exact, draw = dict.fromkeys(names, 0.0), dict[str, Any](), torch.Generator().manual_seed(0)
    for count in range(1 + DRAWS):
        begin()
        values: dict[str, Any] = {name: detached_copy(tensor) for name, tensor in start.items()}
        for task in interpret(graph, captured.calls, values, captured.home):
            # Another run of a random task would draw other numbers.
            if count and not task.random:
                wide = _in_double(captured, task, values)
                values |= {name: _perturbed(values[name], wide.get(name), draw) for name in task.outputs}
        exact = exact or {name: values[name] for name in changes}
        changes = {name: max(moved, distance(values[name], exact[name])) for name, moved in changes.items()}
    return changes


def _in_double(captured: Captured, task: Task, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a task in double precision, by name; empty if it cannot compute in it."""
    wide = {name: widen(values[name]) for name in task.inputs}
    try:
        deque(interpret(replace(captured.graph, tasks=(task,)), captured.calls, wide, captured.home), 0)
    except Exception:
        return {}
    return wide


def _perturbed(value: Any, wide: Any, draw: torch.Generator) -> Any:
    """Return a floating-point tensor whose inexact elements, which are not those of `wide`, are off by up to their last
    bit; other values unchanged. In double precision, all but integers are inexact.

    What is exact, such as the ones of a mask, or a largest element, is so in every order of computing.
    """
    if not isinstance(value, torch.Tensor) or value.dtype not in LIMIT or value.layout is not torch.strided:
        return value
    noise = torch.rand(value.shape, generator=draw, dtype=torch.float64, device="cpu") * 2 - 1
    moved = value * (1 + torch.finfo(value.dtype).eps * noise).to(value)
    if widen(value).dtype == value.dtype:
        return moved if value.is_complex() else torch.where(value == value.round(), value, moved)
    return torch.where(value == wide, value, moved) if isinstance(wide, torch.Tensor) else moved
