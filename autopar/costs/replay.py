"""Seconds of a graph's tasks on a CPU, timed one after the other as in a call, so that caches are in the same
state."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from ..ir.graph import Graph, Task, Value
from ..ops import resolve
from .calibrate import as_tasks
from .roofline import ROWS

with contextlib.suppress(ImportError):
    import resource

log = logging.getLogger("autopar")

T = TypeVar("T")

Calls: TypeAlias = Mapping[str, Callable[..., Any]]
"""The user's own code that tasks call, by target."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""Tensors by the name of their value."""

PASSES = 20
"""Limit on passes over a graph; fewer if it is long."""
FEWEST = 3
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, MemoryError)
"""Exceptions of operations that do not accept synthetic inputs."""


def replayed(
    graph: Graph, tasks: Iterable[Task], device: torch.device, calls: Calls, tensors: Tensors, budget_s: float
) -> dict[str, float | None]:
    """Time tasks in the order of the graph; return the median of up to `PASSES` passes within about `budget_s`
    seconds, without the first; None for tasks that refuse.

    `tensors`: inputs and state by name; other values that the tasks do not make are synthetic. Passes
    in which another process took the core are left out if enough others remain.
    """
    wanted = {task.name for task in tasks}
    order = [task for task in graph.tasks if task.name in wanted]
    functions = [resolve.target(task.target, calls) for task in order]
    last = {name: at for at, task in enumerate(order) for name in (*task.inputs, *task.outputs)}
    dead = [
        [name for name in (*task.inputs, *task.outputs) if last[name] == at and name not in tensors]
        for at, task in enumerate(order)
    ]
    refused: set[str] = set()

    def once() -> list[float]:
        """Return the seconds of each task in one pass; 0 for tasks that refused."""
        clock, values, seconds = time.perf_counter, dict(tensors), [0.0] * len(order)
        for at, task in enumerate(order):
            if task.name in refused:
                continue
            result = None
            try:
                for name in task.inputs:
                    if name not in values:
                        values[name] = synthetic(graph, graph.value[name], device)
                call = bound(task, functions[at], values, device)
                begin = clock()
                result = call()
                seconds[at] = clock() - begin
            except REFUSALS as error:
                log.debug("%s is not measured: %s", task.where, error)
                refused.add(task.name)
                continue
            values.update(zip(task.outputs, result if task.unpack else (result,)))
            # Drop everything that a call would have freed by now.
            del call
            result = None
            for name in dead[at]:
                values.pop(name, None)
        return seconds

    start = time.perf_counter()
    samples: list[tuple[int, list[float]]] = []
    with as_tasks(device.type):
        once()
        while len(samples) < PASSES and (len(samples) < FEWEST or time.perf_counter() - start < budget_s):
            before = preemptions()
            seconds = once()
            samples.append((preemptions() - before, seconds))
            if time.perf_counter() - start > 4 * budget_s:
                break
    columns = zip(*undisturbed(samples))
    medians = {task.name: statistics.median(column) for task, column in zip(order, columns)}
    return {name: medians[name] if name in medians and name not in refused else None for name in wanted}


def preemptions() -> int:
    """Return the involuntary context switches of this process's threads so far; 0 if the system does not count
    them."""
    try:
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    except NameError:
        return 0


def undisturbed(samples: Sequence[tuple[int, T]]) -> list[T]:
    """Return the undisturbed samples; if fewer than `FEWEST`, the least disturbed half."""
    quiet = [sample for times, sample in samples if not times]
    if len(quiet) >= min(FEWEST, len(samples)):
        return quiet
    ordered = sorted(samples, key=lambda each: each[0])
    return [sample for _, sample in ordered[: max(FEWEST, len(ordered) // 2)]]


def bound(
    task: Task, function: Callable[..., Any], values: Tensors, device: torch.device
) -> Callable[[], Any]:
    """Return the call of a task's `function` on a device with these values."""
    args = [resolve.argument(item, values.__getitem__, device) for item in task.args]
    kwargs = {name: resolve.argument(item, values.__getitem__, device) for name, item in task.kwargs}
    return partial(function, *args, **kwargs)


def synthetic(graph: Graph, value: Value, device: torch.device) -> torch.Tensor:
    """Return a synthetic tensor for a value: floats of 0.5, integers that are valid indices wherever it is read."""
    dtype = getattr(torch, value.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.empty(value.shape, dtype=dtype, device=device).fill_(0.5)
    if dtype == torch.bool:
        return torch.ones(value.shape, dtype=dtype, device=device)
    random = torch.Generator(device="cpu").manual_seed(0)
    return torch.randint(_below(graph, value), value.shape, generator=random).to(device=device, dtype=dtype)


def _below(graph: Graph, value: Value) -> int:
    """Return the exclusive upper bound of indices: rows of the tables they index, else the shortest axis of other
    inputs."""
    lengths: list[int] = []
    for name in graph.readers.get(value.name, ()):
        task = graph.task[name]
        others = [graph.value[other] for other in task.inputs]
        if task.target.startswith(ROWS) and len(others) > 1 and others[1].name == value.name:
            lengths += others[0].shape[:1]
        else:
            lengths += [side for other in others if "int" not in other.dtype for side in other.shape]
    return max(1, min(lengths, default=1))
