"""Feature splits propagated through the backward and into the updates of weights."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import SUMMED, UPDATES, Cut, Graph, Ref, Task


def forward_of(graph: Graph) -> Graph:
    """Return the forward of a joint graph, with the results of its call."""
    if all(task.phase == "forward" for task in graph.tasks):
        return graph
    tasks = [task for task in graph.tasks if task.phase == "forward"]
    there = {*graph.inputs, *graph.state, *(name for task in tasks for name in task.outputs)}
    return graph.with_tasks(
        tasks,
        outputs=tuple(name for name in graph.outputs if name in there),
        updates=tuple((made, target) for made, target in graph.updates if made in there),
        flat=(),
    )


def backward_cuts(graph: Graph, parts: int, axis: dict[str, int]) -> dict[str, Cut]:
    """Return the cuts of tasks after the forward that read split values, by name.

    `axis` has the axes of split values, weights included, and gets those of the outputs. The gradient of a split
    weight is split like the weight, and so are its update and optimizer state. A task without a matching cut gets
    whole inputs. Linear in tasks and cuts.
    """
    found: dict[str, Cut] = {}
    for task in graph.tasks:
        if task.phase == "forward" or task.random or axis.keys().isdisjoint(task.inputs):
            continue
        cut = _update(task, axis) if task.target in UPDATES else _agreeing(graph, task, parts, axis)
        if cut is None:
            continue
        found[task.name] = cut
        pairs = (*zip(task.inputs, cut.inputs), *zip(task.outputs, cut.outputs))
        axis.update((name, place) for name, place in pairs if place is not None and place >= 0)
    return found


def updates_in_parts(graph: Graph, cuts: Mapping[str, Cut]) -> dict[str, str]:
    """Return the state whose new value is made in parts, by that value."""
    target = dict(graph.updates)
    tasks = (graph.task[name] for name in cuts if graph.task[name].target in UPDATES)
    return {made: target[made] for task in tasks for made in task.outputs}


def _agreeing(graph: Graph, task: Task, parts: int, axis: Mapping[str, int]) -> Cut | None:
    """Return the cut of a task that uses all split inputs as they are, and splits the fewest others."""
    values = [graph.value[name] for name in (*task.inputs, *task.outputs)]

    def fits(cut: Cut) -> bool:
        places = (*cut.inputs, *cut.outputs)
        even = all(
            place is None or place == SUMMED or (place >= 0 and value.shape[place] % parts == 0)
            for value, place in zip(values, places)
        )
        return even and all(axis.get(name, place) == place for name, place in zip(task.inputs, cut.inputs))

    able = [cut for cut in task.cuts if None not in cut.outputs and fits(cut)]
    return min(able, key=lambda cut: len(cut.inputs) - cut.inputs.count(None), default=None)


def _update(task: Task, axis: Mapping[str, int]) -> Cut | None:
    """Return the cut of the update of one parameter whose gradient is split like itself; its state is split
    likewise."""
    item, *more = task.args
    assert isinstance(item, tuple)
    _, _, parameter, gradient, factor, *_ = item
    assert isinstance(parameter, Ref) and isinstance(gradient, Ref)
    place = axis.get(parameter.value)
    if more or place is None or axis.get(gradient.value) != place:
        return None
    one = factor.value if isinstance(factor, Ref) else None
    return Cut(tuple(None if name == one else place for name in task.inputs), (place,) * len(task.outputs))
