"""Seconds of a graph's tasks on a CPU, timed one after the other as in a call, so that caches are in the same
state."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..ir.graph import Graph, Task, Value
from ..ops import resolve as bind
from .work import ROWS

with contextlib.suppress(ImportError):
    import resource

log = logging.getLogger("autopar")

T = TypeVar("T")

PASSES = 20
"""Limit on passes over a graph; fewer if it is long."""
FEWEST = 3
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, MemoryError)
"""Exceptions of operations that do not accept made-up inputs."""


def replayed(
    graph: Graph,
    tasks: Iterable[Task],
    device: torch.device,
    calls: Mapping[str, Callable[..., Any]],
    given: Mapping[str, torch.Tensor],
    budget_s: float,
) -> dict[str, float | None]:
    """Time tasks in the order of the graph; return the median of up to `PASSES` passes within about `budget_s`
    seconds, without the first; None for tasks that refuse.

    `given`: inputs and state by name; values that are neither given nor made by the tasks are made up. Passes in which
    another process took the core are left out as long as others remain.
    """
    wanted = {task.name for task in tasks}
    player = _Player(graph, [task for task in graph.tasks if task.name in wanted], device, calls, given)
    start = time.perf_counter()
    samples: list[tuple[int, list[float]]] = []
    with torch.no_grad():
        player.play()
        while len(samples) < PASSES and (len(samples) < FEWEST or time.perf_counter() - start < budget_s):
            before = preemptions()
            seconds = player.play()
            samples.append((preemptions() - before, seconds))
            if time.perf_counter() - start > 4 * budget_s:
                break
    columns = zip(*undisturbed(samples))
    found = {task.name: statistics.median(column) for task, column in zip(player.tasks, columns)}
    return {name: found[name] if name in found and name not in player.refused else None for name in wanted}


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


class _Player:
    """Player of some tasks of a graph in order."""

    def __init__(
        self,
        graph: Graph,
        tasks: Sequence[Task],
        device: torch.device,
        calls: Mapping[str, Callable[..., Any]],
        given: Mapping[str, torch.Tensor],
    ) -> None:
        self.graph, self.tasks, self.device, self.given = graph, tasks, device, given
        self.refused: set[str] = set()
        self.functions = [bind.target(task.target, calls) for task in tasks]
        last = {name: at for at, task in enumerate(tasks) for name in (*task.inputs, *task.outputs)}
        self.dead = [
            [name for name in (*task.inputs, *task.outputs) if last[name] == at and name not in given]
            for at, task in enumerate(tasks)
        ]

    def play(self) -> list[float]:
        """Return the seconds of each task in one pass; 0 for tasks that refused."""
        clock, values, seconds = time.perf_counter, dict(self.given), [0.0] * len(self.tasks)
        for at, (task, function) in enumerate(zip(self.tasks, self.functions)):
            if task.name in self.refused:
                continue
            made = None
            try:
                for name in task.inputs:
                    if name not in values:
                        values[name] = made_up(self.graph, self.graph.value[name], self.device)
                args = [bind.argument(value, values.__getitem__, self.device) for value in task.args]
                kwargs = {
                    name: bind.argument(value, values.__getitem__, self.device) for name, value in task.kwargs
                }
                begin = clock()
                made = function(*args, **kwargs)
                seconds[at] = clock() - begin
            except REFUSALS as error:
                log.debug("%s is not measured: %s", task.where, error)
                self.refused.add(task.name)
                continue
            if task.unpack:
                values.update(zip(task.outputs, made))
            elif task.outputs:
                values[task.outputs[0]] = made
            # Nothing is kept that a call would have freed.
            del args, kwargs
            made = None
            for name in self.dead[at]:
                values.pop(name, None)
        return seconds


def made_up(graph: Graph, value: Value, device: torch.device) -> torch.Tensor:
    """Return a made-up tensor for a value: floats of 0.5, integers that are valid indices wherever it is read."""
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
