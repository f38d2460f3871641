"""Runs that are computed once more taken out again: costed graph → costed graph."""

from __future__ import annotations

from dataclasses import replace

from ...ir.costed import CostedGraph
from ...ir.graph import replace_refs


def once(costed: CostedGraph) -> CostedGraph:
    """The graph without the copies that `again` put in: what read a copy reads the original. Linear in the graph."""
    if not costed.again:
        return costed
    of = dict(costed.again)
    runs = tuple(
        replace(run, reads=tuple(dict.fromkeys(of.get(value, value) for value in run.reads)))
        for run in costed.runs
        if run.name not in of
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
        runs=runs,
        deliver=tuple((of.get(value, value), device) for value, device in costed.deliver),
        again=(),
    )
