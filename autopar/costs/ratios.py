"""Ratios of measured seconds to the roofline's, by (name of the task, device): measured before a plan is made, or
recorded in calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch

from ..ir.graph import Graph, Task
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from .measure import measure
from .roofline import Estimator, signature
from .work import family, work

Ratios: TypeAlias = Mapping[tuple[str, str], float]


def measured(
    graph: Graph,
    machine: Machine,
    calls: Mapping[str, Callable[..., object]],
    given: Mapping[str, torch.Tensor],
) -> Ratios:
    """By `measure`, on the tensors that are given of the inputs and the state."""
    known = measure(graph, machine, calls, given)
    seconds = {}
    for task in graph.tasks:
        key = signature(graph, task)
        for device in machine.devices:
            if (key, device.name) in known:
                seconds[task.name, device.name] = known[key, device.name]
    return _ratios(graph, machine, seconds)


def recorded(plan: Plan, seconds: Mapping[tuple[str, str], float]) -> Ratios:
    """By seconds of the tasks of a plan; of one that was cut into parts also what all of them took together."""
    return _ratios(plan.costed.graph, plan.costed.machine, seconds)


def medians(plan: Plan, timelines: Iterable[Timeline]) -> dict[tuple[str, str], float]:
    """Seconds of each task of recorded calls of a plan, by (task, device): the medians. Those of a declared clock are
    the chips' that it stands in for."""
    scale = plan.costed.machine.stretch
    samples: dict[tuple[str, str], list[float]] = {}
    for timeline in timelines:
        for span in timeline.spans:
            if span.kind == "compute" and span.cluster:
                samples.setdefault((span.name, span.device), []).append((span.end - span.start) / scale)
    return {key: statistics.median(found) for key, found in samples.items()}


def _ratios(graph: Graph, machine: Machine, seconds: Mapping[tuple[str, str], float]) -> Ratios:
    estimators = {device.name: Estimator(machine, device) for device in machine.devices}
    found: dict[tuple[str, str], float] = {}
    whole: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (name, device), took in seconds.items():
        task = graph.task[name]
        guess = _guess(graph, task, estimators[device])
        if guess > 0:
            found[name, device] = took / guess
            if task.origin:
                whole.setdefault((task.origin, device), []).append((took, guess))
    for key, parts in whole.items():
        found.setdefault(key, sum(took for took, _ in parts) / sum(guess for _, guess in parts))
    return found


def _guess(graph: Graph, task: Task, estimator: Estimator) -> float:
    return estimator.seconds(work(graph, task), family(graph, task))
