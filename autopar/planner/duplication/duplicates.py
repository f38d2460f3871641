"""Clusters computed once more on a second device: costed graph → costed graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from ...ir.costed import Cluster, CostedGraph, TaskCost
from ...ir.graph import Task, Value, replace_refs


def again(
    costed: CostedGraph,
    device: Mapping[str, str],
    more: Collection[tuple[str, str]],
    stops: Mapping[tuple[str, str], str],
) -> CostedGraph:
    """The graph with each (cluster, device) of `more`, all `repeatable`, as a cluster of its own that is bound to its
    device.

    `device` is where all clusters are: those on a device with a copy read what the copy makes, other copies there
    included, and what must be delivered there is the copy's. So is what would pass through a device with a copy:
    `stops` has the device between for each pair of devices that has one, so that no value comes to be on a device
    twice. Linear in the graph.
    """
    steps, names = _named(costed, more)
    copies: dict[str, list[str]] = {}
    for name, where in more:
        copies.setdefault(name, []).append(where)
    of = dict(costed.again)
    # The one of a value and its copies that is on a device: made there, or brought.
    present = {(of.get(value, value), device[cluster]): value for value, cluster in costed.producer.items()}
    present |= {(value, where): copy for where, found in names.items() for value, copy in found.items()}

    def source(value: str, at: str) -> str:
        """The value that is read on a device for a value of the graph, or one of its copies."""
        if value not in costed.producer:
            return value
        root = of.get(value, value)
        if (root, at) not in present:
            between = stops.get((device[costed.producer[value]], at), at)
            present[root, at] = present.setdefault((root, between), value)
        return present[root, at]

    values = {value.name: value for value in costed.graph.values}
    tasks: list[Task] = []
    costs: list[TaskCost] = []
    clusters: list[Cluster] = []
    for cluster in costed.clusters:
        here = {value: source(value, device[cluster.name]) for value in cluster.reads}
        tasks += [_task(costed.graph.task[task], here, {}) for task in cluster.tasks]
        costs += [costed.cost[task] for task in cluster.tasks]
        read = tuple(here.values())
        clusters.append(cluster if read == cluster.reads else replace(cluster, reads=read))
        for where in copies.get(cluster.name, ()):
            there, called = names[where], steps[where]
            reads = {value: source(value, where) for value in cluster.reads}
            made = [value for task in cluster.tasks for value in costed.graph.task[task].outputs]
            inside = {**{value: there[value] for value in made}, **reads}
            tasks += [
                replace(_task(costed.graph.task[task], inside, there), name=called[task])
                for task in cluster.tasks
            ]
            costs += [replace(costed.cost[task], task=called[task]) for task in cluster.tasks]
            clusters.append(_cluster(cluster, called, there, reads, costed.index[where]))
            for value in made:
                values[there[value]] = _value(values[value], there)
    delivered = {pair: source(*pair) for pair in costed.deliver}
    count = len(costed.graph.outputs)
    graph = replace(
        costed.graph,
        values=tuple(values.values()),
        tasks=tuple(tasks),
        outputs=tuple(delivered[pair] for pair in costed.deliver[:count]),
    )
    return replace(
        costed,
        graph=graph,
        costs=tuple(costs),
        clusters=tuple(clusters),
        deliver=(*((delivered[pair], pair[1]) for pair in costed.deliver[:count]), *costed.deliver[count:]),
        again=(
            *costed.again,
            *((copy, name) for of in (steps, names) for own in of.values() for name, copy in own.items()),
        ),
    )


Names: TypeAlias = dict[str, dict[str, str]]


def _named(costed: CostedGraph, more: Collection[tuple[str, str]]) -> tuple[Names, Names]:
    """Names of the copies of clusters and tasks, and of the copies of values, by device and original."""
    taken = {*costed.graph.value, *costed.graph.task, *costed.cluster}
    # A value may be called what a task is called.
    steps: Names = {where: {} for _, where in more}
    names: Names = {where: {} for _, where in more}
    for name, where in more:
        tasks = costed.cluster[name].tasks
        made = [value for task in tasks for value in costed.graph.task[task].outputs]
        for found, originals in ((steps[where], [name, *tasks]), (names[where], made)):
            for original in dict.fromkeys(originals):
                copy = f"{original} again on {where}"
                while copy in taken:
                    copy += "'"
                taken.add(copy)
                found[original] = copy
    return steps, names


def _task(task: Task, reads: Mapping[str, str], made: Mapping[str, str]) -> Task:
    changed = {old: new for old, new in reads.items() if old != new}
    if not changed and not made:
        return task
    args = tuple(replace_refs(argument, changed) for argument in task.args)
    kwargs = tuple((key, replace_refs(argument, changed)) for key, argument in task.kwargs)
    outputs = tuple(made.get(value, value) for value in task.outputs)
    return replace(task, args=args, kwargs=kwargs, outputs=outputs)


def _cluster(
    cluster: Cluster,
    called: Mapping[str, str],
    there: Mapping[str, str],
    reads: Mapping[str, str],
    device: int,
) -> Cluster:
    seconds = tuple(s if d == device else None for d, s in enumerate(cluster.seconds))
    return replace(
        cluster,
        name=called[cluster.name],
        tasks=tuple(called[task] for task in cluster.tasks),
        seconds=seconds,
        reads=tuple(reads.values()),
        makes=tuple(there[value] for value in cluster.makes),
        modes=tuple(mode for mode in cluster.modes if mode[0] == device),
    )


def _value(value: Value, there: Mapping[str, str]) -> Value:
    return replace(value, name=there[value.name], storage=there.get(value.storage, value.storage))


def once(costed: CostedGraph) -> CostedGraph:
    """The graph without the copies that `again` put in: what read a copy reads the original. Linear in the graph."""
    if not costed.again:
        return costed
    of = dict(costed.again)
    clusters = tuple(
        replace(cluster, reads=tuple(dict.fromkeys(of.get(value, value) for value in cluster.reads)))
        for cluster in costed.clusters
        if cluster.name not in of
    )
    tasks = tuple(
        replace(
            task,
            args=tuple(replace_refs(argument, of) for argument in task.args),
            kwargs=tuple((key, replace_refs(argument, of)) for key, argument in task.kwargs),
        )
        for task in costed.graph.tasks
        if task.name not in of
    )
    graph = replace(
        costed.graph,
        values=tuple(value for value in costed.graph.values if value.name not in of),
        tasks=tasks,
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
