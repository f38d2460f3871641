"""Measured seconds of each distinct operation on each real device, stored; and their ratios to the roofline by (task,
device)."""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from ..ir.device import Device
from ..ir.display_names import LOSS
from ..ir.graph import Graph, Task
from ..ir.machine import Machine
from ..ops import resolve
from ..system import cache
from . import calibrate, scales
from .replay import REFUSALS, Calls, Tensors, bound, replayed, synthetic
from .roofline import Ratios, estimate, signature, work

log = logging.getLogger("autopar")

Seconds: TypeAlias = Mapping[tuple[str, str], float]
"""By (task, device name)."""

BUDGET_S = 1.0
"""Limit in seconds on measuring a graph on one device."""
RUNS = 4
"""Number of runs, by the roofline, that must fit in the budget for an operation to be timed."""
EACH_S = 0.05
"""Limit in seconds for one operation on an accelerator."""
TOGETHER_S, BLOCKS = 5e-4, 5
"""Seconds of a block of calls on an accelerator, and the number of blocks, of which the median counts."""
MOST_KEPT = 50_000
"""Limit on the stored operations; the oldest are dropped."""
FAR = 3.0
"""Factor from the roofline beyond which an operation is measured again, up to `TIMES` times."""
TIMES = 3
APART_S = 2e-5
"""Least difference in seconds from the roofline for that; smaller ones change no decision."""
NEAR_BYTES = 8 << 20
"""Limit on the bytes of weights that may stay in a core's caches between calls."""
_MOST_COPIES = 16
"""Limit on the copies of an operation's inputs that its calls read in turn, so that no cache holds them."""


def measure(
    graph: Graph,
    machine: Machine,
    calls: Calls,
    tensors: Tensors | None = None,
    *,
    budget_s: float = BUDGET_S,
) -> dict[tuple[str, str], float]:
    """Measure seconds by (task, device name), dispatch included; equal operations (`signature`) are timed once.

    On a CPU, the tasks run one after the other as in a call (`replay`), with a lane's threads, on `tensors`,
    inputs and state by name, or else on synthetic ones. On an accelerator, each runs alone on synthetic inputs. If the
    graph's weights do not fit in its cache, it runs on several copies in turn. Earlier times on the same chip
    are reused, unless they are far from the roofline. The longest operations by the roofline come first,
    within about `budget_s` seconds on each device. The roofline prices the others, and tasks that draw random
    numbers, must follow others, write in place, are the user's own (`calls`), make no tensor or refuse
    synthetic inputs. Nothing is measured if devices are absent or on a declared clock.
    """
    if machine.absent or machine.clock == "declared":
        log.info("nothing is measured: %s", machine.label)
        return {}
    book = _Book(graph, machine, calls)
    start, timed = time.perf_counter(), 0
    for device in machine.devices:
        wanted = book.missing(device, budget_s)
        if wanted:
            try:
                for tasks, seconds in _timed(book, wanted, device, tensors or {}, budget_s):
                    book.enter(device, tasks, seconds)
                    timed += 1
            finally:
                book.keep(device)
    if timed:
        log.info("measured %d operations in %.2f s", timed, time.perf_counter() - start)
    return book.known()


def measured(graph: Graph, machine: Machine, calls: Calls, tensors: Tensors) -> Ratios:
    """Return ratios by `measure`, with `tensors` as inputs and state."""
    return _ratios(graph, machine, measure(graph, machine, calls, tensors))


def _ratios(graph: Graph, machine: Machine, seconds: Seconds) -> Ratios:
    estimates = {device.name: estimate(machine, device) for device in machine.devices}
    ratios: dict[tuple[str, str], float] = {}
    whole: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (name, device), took in seconds.items():
        task = graph.task[name]
        guess = estimates[device](work(graph, task))
        if guess > 0:
            ratios[name, device] = took / guess
            if task.origin:
                whole.setdefault((task.origin, device), []).append((took, guess))
    for key, parts in whole.items():
        ratios.setdefault(key, sum(took for took, _ in parts) / sum(guess for _, guess in parts))
    return ratios


def chip(device: Device) -> str:
    """Return the cache key of a device: a CPU with its threads, or the chip of an accelerator."""
    return f"cpu, {device.threads} threads" if device.torch_type == "cpu" else device.chip


def measurable(graph: Graph, task: Task, calls: Calls) -> bool:
    """Return True if calling a task's operator, even on the user's tensors, has no side effects."""
    if task.random or task.after or task.target in calls or task.target == LOSS or not task.outputs:
        return False
    if any(graph.value[name].dtype == "object" for name in (*task.inputs, *task.outputs)):
        return False
    schema = getattr(resolve.target(task.target, calls), "_schema", None)
    return schema is None or not schema.is_mutable


class _Book:
    """The stored measurements of operations, and the operations of a graph. An entry is `{"family",
    "kernels", "busy_s", "seconds": [...]}`, or None if the operation refuses."""

    def __init__(self, graph: Graph, machine: Machine, calls: Calls) -> None:
        self.graph, self.machine, self.calls = graph, machine, calls
        self.path = cache.file_for("operations", [scales.VERSION, torch.__version__])
        self.entries = cache.load(self.path)
        self.key = {task.name: signature(graph, task) for task in graph.tasks}
        self.tasks: dict[str, list[Task]] = {}
        for task in graph.tasks:
            if measurable(graph, task, calls):
                self.tasks.setdefault(self.key[task.name], []).append(task)
        self.work = {key: work(graph, tasks[0]) for key, tasks in self.tasks.items()}
        state = sum(graph.value[name].bytes for name in graph.state)
        self.where = "near" if state <= NEAR_BYTES else "far"

    def label(self, device: Device, key: str) -> str:
        """Return the key of an entry, which depends on whether the graph's weights fit in the caches."""
        return f"{chip(device)}, {self.where}: {key}"

    def missing(self, device: Device, budget_s: float) -> list[Task]:
        """Return the tasks to time within the budget, of operations that are unmeasured or far from the
        roofline: one task of each, the longest first, then further ones."""
        # Scales fitted while others kept an accelerator busy would make the times of then look right.
        plain = device if device.traits.host else replace(device, scales=())
        estimated = estimate(self.machine, plain)
        ranked = []
        for key, tasks in self.tasks.items():
            guess = estimated(self.work[key])
            entry = self.entries.get(self.label(device, key), ...)
            if entry is ... or _far(entry, guess):
                ranked += [(turn, -guess, task) for turn, task in enumerate(tasks)]
        left, missing = budget_s / RUNS, []
        for _, guess, task in sorted(ranked, key=lambda each: each[:2]):
            if -guess <= left:
                left += guess
                missing.append(task)
        return missing

    def enter(self, device: Device, tasks: Sequence[Task], seconds: float | None) -> None:
        """Record the mean seconds of an operation's tasks; None if it refuses."""
        label = self.label(device, self.key[tasks[0].name])
        if seconds is None:
            self.entries.setdefault(label, None)
            return
        todo = self.work[self.key[tasks[0].name]]
        before = _seconds(self.entries.pop(label, None))
        busy = todo.seconds(device.flops_per_s(todo.dtype), device.bytes_per_s)
        self.entries[label] = {
            "family": todo.family, "kernels": todo.kernels, "busy_s": busy, "seconds": [*before, seconds][-TIMES:],
        }  # fmt: skip

    def known(self) -> dict[tuple[str, str], float]:
        """Return the seconds of each task on each device."""
        known = {}
        for task in self.graph.tasks:
            key = self.key[task.name]
            for device in self.machine.devices if key in self.tasks else ():
                seconds = _seconds(self.entries.get(self.label(device, key)))
                if seconds:
                    known[task.name, device.name] = _typical(seconds, device)
        return known

    def keep(self, device: Device) -> None:
        """Store all entries, and the scales of a device as fitted to them."""
        cache.store(self.path, dict(list(self.entries.items())[-MOST_KEPT:]))
        scales.keep({chip(device): scales.fitted(self._samples(device))})

    def _samples(self, device: Device) -> Iterator[tuple[str, int, float, float]]:
        """Yield all entries of a chip, of this graph and of others."""
        for label, entry in self.entries.items():
            if label.startswith(f"{chip(device)}, ") and (seconds := _seconds(entry)):
                kind, kernels, busy = entry.get("family"), entry.get("kernels"), entry.get("busy_s")
                if isinstance(kind, str) and all(isinstance(part, (int, float)) for part in (kernels, busy)):
                    yield kind, kernels, busy, _typical(seconds, device)


def _seconds(entry: Any) -> list[float]:
    """Return the valid seconds of an entry."""
    samples = entry.get("seconds") if isinstance(entry, dict) else None
    return list(filter(cache.is_figure, samples or ()))


def _typical(seconds: Sequence[float], device: Device) -> float:
    """Return the typical seconds of an operation: the median of its measurements, but the least on an
    accelerator, where only the work of others delays it."""
    return statistics.median(seconds) if device.traits.host else min(seconds)


def _far(entry: Any, guess: float) -> bool:
    """Return True if an entry is to be measured again."""
    seconds = _seconds(entry)
    if not seconds:
        return entry is not None
    middle = statistics.median(seconds)
    apart = abs(middle - guess) > APART_S and not guess / FAR <= middle <= FAR * guess
    return apart and len(seconds) < TIMES


def _timed(
    book: _Book, tasks: Sequence[Task], device: Device, tensors: Tensors, budget_s: float
) -> Iterator[tuple[list[Task], float | None]]:
    """Yield the tasks of each operation with its seconds."""
    alike: dict[str, list[Task]] = {}
    for task in tasks:
        alike.setdefault(book.key[task.name], []).append(task)
    on = torch.device(device.torch_device)
    if on.type == "cpu":
        here = {name: tensor for name, tensor in tensors.items() if _usable(book.graph, name, tensor, on)}
        with calibrate.threads(device.threads):
            seconds_of = replayed(book.graph, tasks, on, book.calls, here, budget_s)
        for each in alike.values():
            seconds = [took for task in each if (took := seconds_of[task.name]) is not None]
            yield each, statistics.fmean(seconds) if seconds else None
        return
    start = time.perf_counter()
    for each in alike.values():
        if time.perf_counter() - start < budget_s:
            yield each, _alone(book, each[0], device)


def _usable(graph: Graph, name: str, tensor: torch.Tensor, device: torch.device) -> bool:
    """Return True for a tensor with memory on the device that matches the graph."""
    value = graph.value.get(name)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if value is None or not plain or tensor.device != device:
        return False
    return tuple(tensor.shape) == value.shape and str(tensor.dtype) == f"torch.{value.dtype}"


def _alone(book: _Book, task: Task, device: Device) -> float | None:
    """Return the seconds of one call on an accelerator; None if it refuses these inputs or they do not fit."""
    graph, on = book.graph, torch.device(device.torch_device)
    nbytes = sum(graph.value[name].bytes for name in task.inputs)
    copies = max(1, min(_MOST_COPIES, 8 * NEAR_BYTES // max(1, nbytes))) if book.where == "far" else 1
    try:
        with calibrate.as_tasks(on.type):
            function, prepared = resolve.target(task.target, book.calls), []
            for _ in range(copies):
                tensors = {name: synthetic(graph, graph.value[name], on) for name in task.inputs}
                prepared.append(bound(task, function, tensors, on))
            turn = itertools.cycle(prepared)
            return _blocks(lambda: next(turn)(), device.torch_device)
    except REFUSALS as error:
        log.debug("%s is not measured on %s: %s", task.where, device.name, error)
        return None


def _blocks(call: Callable[[], Any], device: str) -> float:
    """Return the median seconds over a few blocks of calls, each between two clock readings, so that the
    queue fills and the clock's own cost vanishes."""
    once = max(calibrate.best(call, device, 1), 1e-7)
    together = max(1, min(100, int(TOGETHER_S / once)))
    count = max(3, min(BLOCKS, int(EACH_S / (together * once))))
    return (
        statistics.median(calibrate.durations(lambda: [call() for _ in range(together)], device, count))
        / together
    )
