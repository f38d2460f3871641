"""Task duplication: plans that compute clusters on several devices. Placement and duplicates are searched
together, since each depends on the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeAlias

from ..ir.costed import Cluster, CostedGraph, TaskCost, repeatable
from ..ir.graph import Task
from .candidates import SHORTER, Entry, Race
from .model.instance import Instance
from .model.simulator import in_order
from .native import searches
from .search import COPIES, Listed, capped, non_delay
from .search.anneal import CHAINS, TOGETHER, winners

EACH = 4_500
STEPS = 225_000
"""Limits on the search in steps: for each cluster, and in all; chains take `TOGETHER` times as many (`anneal`)."""
LARGEST = 2_000
"""Limit on clusters plus transfers of a plan for which duplication is tried."""
HOT = 0.07
"""Initial temperature: share by which a plan may become longer."""
TRIED = 3
"""Number of plans with duplicates that are simulated."""
POLICY = "search with copies"
"""Policy name of schedules with duplicates."""

Names: TypeAlias = dict[tuple[str, str], str]
"""Names of duplicates, by (original, device)."""


def repeated(race: Race, start: Entry) -> Entry:
    """Return `start`, which has no duplicates, or a shorter plan with some if the search finds one in time.

    The entry has its own `Instance` if clusters are duplicated. Skipped for large plans and without the native search.
    Duplication heuristics: Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling", IEEE TPDS
    9(9), 1998.
    """
    instance = race.instance
    ended = start.makespan <= race.bound * (1 + SHORTER) or race.late
    large = instance.clusters + len(start.play.moves) > LARGEST
    if ended or large or not _promising(instance) or not searches():
        return start
    steps = min(STEPS, EACH * instance.clusters) * TOGETHER
    with capped(instance) if instance.tight else nullcontext():
        found = winners([non_delay(start.play)], race.bound, steps, HOT, race.until, TRIED, CHAINS, COPIES)
    entries = [scheduled(timed) for timed in found if timed.makespan < start.makespan]
    fitting = [entry for entry in entries if entry and not entry.over]
    return min([start, *fitting], key=lambda entry: entry.makespan)


def _promising(instance: Instance) -> bool:
    """Return True if lists of the graph exist (`anneal`) and it has a repeatable cluster whose outputs take time to
    transfer."""
    costed = instance.costed
    return not (instance.modes or costed.again) and any(
        repeatable(costed, cluster)
        and any(
            instance.travel(v, s, d)
            for v in instance.makes[r]
            if instance.readers[v]
            for s in own
            for d in own
        )
        for r, (cluster, own) in enumerate(zip(costed.clusters, instance.able))
    )


def scheduled(timed: Listed) -> Entry | None:
    """Simulate the schedule of a list with its duplicates; None if it deadlocks.

    The entry has its own `Instance`. Linear in the graph except for sorting.
    """
    instance, first = timed.instance, timed.instance.clusters + 1
    names, devices = instance.names, instance.devices
    more = [(names[r], devices[d]) for r, d in zip(timed.of, timed.device[first:])]
    costed, called = again(instance, dict(zip(names, (devices[d] for d in timed.device))), more)
    copied = Instance(costed)
    steps = [*enumerate(names), *enumerate((called[key] for key in more), first)]
    numbered = [(timed.start[i], timed.end[i], copied.number[name], i) for i, name in steps]
    placed = [(r, timed.device[i], (timed.lane[i],)) for _, _, r, i in sorted(numbered)]
    return Race(copied).trial(in_order(copied, POLICY, placed))


def again(
    instance: Instance, device: Mapping[str, str], more: Collection[tuple[str, str]]
) -> tuple[CostedGraph, Names]:
    """Add each (cluster, device) of `more`, all `repeatable`, to the graph as a cluster bound to its device;
    return the graph and the names of these duplicates.

    `device`: the device of each cluster. Readers and deliveries on a device with a duplicate, and transfers
    through it, use the duplicate's values, so no value is on a device twice. Linear in the graph.
    """
    costed, graph = instance.costed, instance.costed.graph
    steps, made = _named(costed, more)
    copies: dict[str, list[str]] = {}
    for name, where in more:
        copies.setdefault(name, []).append(where)
    # Which of a value and its duplicates is on a device, made there or transferred.
    present = {(value, device[cluster]): value for value, cluster in costed.producer.items()} | made

    def source(value: str, at: str) -> str:
        """Return the value, original or duplicate, that readers on device `at` use."""
        if value not in costed.producer:
            return value
        if (value, at) not in present:
            hops = instance.route[costed.index[device[costed.producer[value]]]][costed.index[at]] or ()
            between = instance.devices[hops[0].dst] if hops else at
            present[value, at] = present.setdefault((value, between), value)
        return present[value, at]

    values = {value.name: value for value in graph.values}
    tasks: list[Task] = []
    costs: list[TaskCost] = []
    clusters: list[Cluster] = []
    for cluster in costed.clusters:
        makes = [value for task in cluster.tasks for value in graph.task[task].outputs]
        for copy in ("", *copies.get(cluster.name, ())):
            own = {value: made[value, copy] for value in makes} if copy else {}
            reads = {value: source(value, copy or device[cluster.name]) for value in cluster.reads}
            for name in cluster.tasks:
                task, called = graph.task[name], steps.get((name, copy), name)
                renamed = tuple(own.get(value, value) for value in task.outputs)
                tasks.append(replace(task.reading(own | reads), name=called, outputs=renamed))
                costs.append(replace(costed.cost[name], task=called))
            clusters.append(
                replace(
                    cluster.on(costed.index[copy]) if copy else cluster,
                    name=steps.get((cluster.name, copy), cluster.name),
                    tasks=tuple(steps.get((task, copy), task) for task in cluster.tasks),
                    reads=tuple(reads.values()),
                    makes=tuple(own.get(value, value) for value in cluster.makes),
                )
            )
            for value, called in own.items():
                storage = values[value].storage
                values[called] = replace(values[value], name=called, storage=own.get(storage, storage))
    count = len(graph.outputs)
    outputs = tuple(source(value, at) if at else value for value, at in costed.deliver[:count])
    return replace(
        costed,
        graph=replace(graph, values=tuple(values.values()), tasks=tuple(tasks), outputs=outputs),
        costs=tuple(costs),
        clusters=tuple(clusters),
        deliver=(*zip(outputs, (at for _, at in costed.deliver)), *costed.deliver[count:]),
        again=tuple((copy, name) for of in (steps, made) for (name, _), copy in of.items()),
    ), steps


def _named(costed: CostedGraph, more: Iterable[tuple[str, str]]) -> tuple[Names, Names]:
    """Return names for the duplicates of clusters and tasks, and of values, which may be named like tasks."""
    taken = {*costed.graph.value, *costed.graph.task, *costed.cluster}
    steps: Names = {}
    values: Names = {}
    for name, where in more:
        tasks = costed.cluster[name].tasks
        made = [value for task in tasks for value in costed.graph.task[task].outputs]
        for found, originals in ((steps, [name, *tasks]), (values, made)):
            for original in dict.fromkeys(originals):
                copy = f"{original} again on {where}"
                while copy in taken:
                    copy += "'"
                taken.add(copy)
                found[original, where] = copy
    return steps, values


def once(costed: CostedGraph) -> CostedGraph:
    """Return the graph without the duplicates of `again`: readers use the originals. Linear in the graph."""
    if not costed.again:
        return costed
    of = dict(costed.again)
    clusters = tuple(
        replace(cluster, reads=tuple(dict.fromkeys(of.get(value, value) for value in cluster.reads)))
        for cluster in costed.clusters
        if cluster.name not in of
    )
    graph = replace(
        costed.graph,
        values=tuple(value for value in costed.graph.values if value.name not in of),
        tasks=tuple(task.reading(of) for task in costed.graph.tasks if task.name not in of),
        outputs=tuple(of.get(value, value) for value in costed.graph.outputs),
    )
    return replace(
        costed,
        graph=graph,
        costs=tuple(cost for cost in costed.costs if cost.task not in of),
        clusters=clusters,
        deliver=tuple((of.get(value, value), device) for value, device in costed.deliver),
        again=(),
    )
