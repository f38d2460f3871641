"""The schedulers of SAGA (anrg-saga), on instances that both sides understand, their results judged as ours are."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from .judging import Judged
from .related import Instance
from .verify import infeasibilities

MISSING = "SAGA is not installed, and its schedulers are left out; type: pip install anrg-saga==2.0.2"
HOPELESS = ("BruteForceScheduler", "SMTScheduler", "HybridScheduler")
"""The first two look through everything there is; the third needs to be told which others to try."""
SLOW = {"DPSScheduler": 100, "GDLScheduler": 600, "SufferageScheduler": 600, "ETFScheduler": 1200, "WBAScheduler": 600,
        "MinMinScheduler": 600, "MaxMinScheduler": 600, "DuplexScheduler": 600, "MsbcScheduler": 1200,
        "BILScheduler": 1200, "HbmctScheduler": 600}  # fmt: skip
"""Tasks up to which a scheduler ends in reasonable time, where that is not thousands."""


def installed() -> bool:
    """Whether SAGA can be imported."""
    return importlib.util.find_spec("saga") is not None


def names(tasks: int) -> list[str]:
    """The schedulers to be tried on a graph of so many tasks."""
    from saga import schedulers

    return [name for name in schedulers.__all__ if name not in HOPELESS and tasks <= SLOW.get(name, 10**9)]


def taken(name: str, network: Any, graph: Any) -> Instance:
    """SAGA's network and task graph as an instance, in an order that does not depend on how strings are hashed."""
    return Instance(
        name,
        dict(sorted((task.name, task.cost) for task in graph.tasks)),
        dict(sorted(((edge.source, edge.target), edge.size) for edge in graph.dependencies)),
        dict(sorted((node.name, node.speed) for node in network.nodes)),
        {
            tuple(sorted((edge.source, edge.target))): edge.speed
            for edge in sorted(network.edges)
            if edge.source != edge.target
        },
    )  # fmt: skip


def given(instance: Instance) -> tuple[Any, Any]:
    """An instance as SAGA's network and task graph."""
    from saga import Network, TaskGraph

    network = Network.create(instance.speed.items(), [(a, b, rate) for (a, b), rate in instance.rate.items()])
    sizes = [(a, b, size) for (a, b), size in instance.size.items()]
    # It warns of each end it adds, on the root logger, whose level is not ours to keep.
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        return network, TaskGraph.create(instance.work.items(), sizes)
    finally:
        root.setLevel(level)


def scheduled(scheduler: str, instance: Instance, network: Any, graph: Any) -> Judged:
    """What one of its schedulers makes of an instance. Tasks that SAGA adds at both ends are left out."""
    from saga import schedulers

    start = time.process_time()
    try:
        found = getattr(schedulers, scheduler)().schedule(network, graph)
    except Exception as error:
        nothing = {"makespan_s": float("inf"), "lower_bound_s": 0.0, "tasks": [], "transfers": []}
        return Judged(nothing, time.process_time() - start, (f"it raises {type(error).__name__}: {error}",))
    cost = time.process_time() - start
    placed = [
        (task.name, node, task.start, task.end)
        for node, tasks in sorted(found.items())
        for task in tasks
        if task.name in instance.work
    ]
    plan = instance.plan(placed)
    return Judged(plan, cost, tuple(infeasibilities(instance.graph(), plan)))


@contextmanager
def looked_up() -> Iterator[None]:
    """SAGA's own code with its searches through lists of tasks replaced by look-ups, for graphs of thousands; what it
    then takes says nothing about it."""
    import saga

    # Frozen models have no room for a cache of their own; the owner is kept so that its id is not given away.
    kept: dict[int, tuple[Any, dict[str, Any]]] = {}

    def named(owner: Any, items: Any, name: Any) -> Any:
        if id(owner) not in kept:
            kept[id(owner)] = owner, {item.name: item for item in items}
        return kept[id(owner)][1][getattr(name, "name", name)]

    def task(self: Any, name: Any) -> Any:
        return named(self, self.tasks, name)

    def node(self: Any, name: Any) -> Any:
        return named(self, self.nodes, name)

    def scheduled_already(self: Any, name: str) -> bool:
        return name in self._task_map

    with (
        mock.patch.object(saga.TaskGraph, "get_task", task),
        mock.patch.object(saga.Network, "get_node", node),
        mock.patch.object(saga.Schedule, "is_scheduled", scheduled_already),
    ):
        yield
