"""Seconds of each distinct operation of a graph on each real device, timed once and kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..ir.device import Device
from ..ir.graph import Graph, Task
from ..ir.machine import Machine
from ..ops import resolve as bind
from ..system import cache
from ..text import bar
from . import calibrate as probe
from .roofline import signature

log = logging.getLogger("autopar")

BUDGET_S = 0.05
"""Seconds that timing one operation on one device may take, unless a single call takes longer."""
TOGETHER_S = 5e-4
MOST_KEPT = 50_000


def measure(
    graph: Graph,
    machine: Machine,
    calls: Mapping[str, Callable[..., Any]],
    *,
    budget_s: float = BUDGET_S,
) -> dict[tuple[str, str], float]:
    """Shortest seconds seen (noise only adds) by (`signature` of a task, device name), dispatch included.

    Each operation runs alone on made-up inputs of its shapes and dtypes, with the threads a lane of the
    device has; what was timed before on the same chip comes from the cache. Left to the roofline: views,
    tasks that draw random numbers, must follow others, are the user's own (`calls`) or make
    no tensor, operations that refuse made-up inputs, and devices on a declared clock or not here.
    """
    if machine.absent or machine.clock == "declared":
        log.info("nothing is measured: %s", machine.label)
        return {}
    tasks = {
        signature(graph, task): task for task in reversed(graph.tasks) if _measurable(graph, task, calls)
    }
    path = cache.file_for("operations", [torch.__version__])
    entries = cache.load(path)
    found: dict[tuple[str, str], float] = {}
    start, timed = time.perf_counter(), 0
    wanted = [(key, tasks[key], device) for key in sorted(tasks) for device in machine.devices]
    missing = [(key, task, device) for key, task, device in wanted if _label(device, key) not in entries]
    try:
        for key, task, device in bar(missing, "measuring"):
            if _label(device, key) not in entries:
                entries[_label(device, key)] = _seconds(graph, task, device, calls, budget_s)
                timed += 1
    finally:
        if timed:
            cache.store(path, dict(list(entries.items())[-MOST_KEPT:]))
    for key, _, device in wanted:
        seconds = entries[_label(device, key)]
        if isinstance(seconds, (int, float)) and seconds > 0:
            found[key, device.name] = float(seconds)
    if timed:
        log.info("measured %d operations in %.2f s", timed, time.perf_counter() - start)
    return found


def _measurable(graph: Graph, task: Task, calls: Mapping[str, Callable[..., Any]]) -> bool:
    if task.free or task.random or task.after or task.target in calls or not task.outputs:
        return False
    return all(graph.value[name].dtype != "object" for name in (*task.inputs, *task.outputs))


def _label(device: Device, key: str) -> str:
    if device.torch_type == "cpu":
        return f"cpu, {device.threads} threads: {key}"
    return f"{device.chip}: {key}"


def _seconds(
    graph: Graph, task: Task, device: Device, calls: Mapping[str, Callable[..., Any]], budget_s: float
) -> float | None:
    """Seconds of one call, None when the operation refuses these inputs or they do not fit."""
    on = torch.device(device.torch_device)
    count = device.threads if on.type == "cpu" else torch.get_num_threads()
    try:
        with torch.no_grad(), probe.threads(count):
            made = made_up(graph, task, on)
            function = bind.target(task.target, calls)
            args = [bind.argument(value, made.__getitem__, on) for value in task.args]
            kwargs = {name: bind.argument(value, made.__getitem__, on) for name, value in task.kwargs}
            return _shortest(lambda: function(*args, **kwargs), device.torch_device, budget_s)
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
        log.debug("%s is not measured on %s: %s", task.where, device.name, error)
        return None


def made_up(graph: Graph, task: Task, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors for what a task reads: floats between 0 and 1, integers that are an index into any of its float
    inputs."""
    values = [graph.value[name] for name in task.inputs]
    lengths = [length for value in values if "int" not in value.dtype for length in value.shape]
    below = max(1, min(lengths, default=1))
    random = torch.Generator(device="cpu").manual_seed(0)
    made = {}
    for value in values:
        dtype = getattr(torch, value.dtype)
        if dtype.is_floating_point or dtype.is_complex:
            tensor = torch.empty(value.shape, dtype=dtype, device=device).fill_(0.5)
        elif dtype == torch.bool:
            tensor = torch.ones(value.shape, dtype=dtype, device=device)
        else:
            tensor = torch.randint(below, value.shape, generator=random).to(device=device, dtype=dtype)
        made[value.name] = tensor
    return made


def _shortest(call: Callable[[], Any], device: str, budget_s: float) -> float:
    start = time.perf_counter()
    once = max(probe.best(call, device, 1), 1e-7)
    # Several calls between two looks at the clock: a queue fills, and the clock's own cost vanishes.
    together = max(1, min(100, int(TOGETHER_S / once)))
    shortest = once
    samples = 0
    while samples < 3 or (samples < 20 and time.perf_counter() - start < budget_s):
        begin = time.perf_counter()
        for _ in range(together):
            call()
        probe.synchronize(device)
        shortest = min(shortest, (time.perf_counter() - begin) / together)
        samples += 1
    return shortest
