"""Split large products of a graph along features, in forward, backward and updates of weights, so that
devices can share one layer. Slices of weights become states of their own, so that a device only holds the
slices that it reads. `feature_cuts`: the candidates on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, cast

from ..ir.costed import CostedGraph
from ..ir.graph import PART, SUMMED, UPDATES, WORDS, Cut, Graph, Ref, Slice, Task, Value
from .batch_axis import batch_of, cut_axes
from .features import Stretch, stretches
from .row_sums import drawn
from .split import Splitter

LABEL = "features in "
"""Prefix of `Graph.split` if features instead of the batch are split."""

Price: TypeAlias = Callable[[Graph], CostedGraph]

MOST_PARTS = 8
"""Limit on the parts of a candidate."""
LEAST_PRODUCT_S = 1e-3
"""Least seconds of products for a feature split: many times the cost of joining lanes, which exceeds its
prediction below 1 ms."""


def products(graph: Graph, parts: int) -> list[Stretch]:
    """Return stretches of the forward that can be split into `parts` parts, without those that draw random numbers.

    Their parts would draw other numbers, except dropouts, which draw their whole masks beforehand
    (`row_sums.drawn`). Tables are not split in training.
    """
    trained = any(task.phase != "forward" for task in graph.tasks)
    forward = _forward(drawn(graph))
    masks = {name for task in forward.tasks if task.random for name in task.outputs}
    return [
        stretch
        for stretch in stretches(forward, parts, (), masks=masks)
        if not stretch.refusal
        and not (stretch.embeddings and (trained or graph.mutated.intersection(stretch.axes)))
        and not any(forward.task[name].random for name in stretch.tasks)
    ]


def split_features(graph: Graph, parts: int, wanted: Collection[str]) -> Graph:
    """Split the stretches that begin with a `wanted` task; return the graph itself if there are none.

    Columns use blocks of rows of their weights, rows use blocks of columns; each block is a state of its own.
    The summands of rows are added, then their bias. Each part of a table looks up its own words, and the
    results are added. The backward and the updates of weights are split too, so the parts are the updated
    states. Parts are named as in `split`.
    """
    chosen = [stretch for stretch in products(graph, parts) if stretch.tasks[0] in wanted]
    if not chosen or parts < 2:
        return graph
    graph = _separable(drawn(graph), chosen)
    axis: dict[str, int] = {}
    cuts: dict[str, Cut] = {}
    for stretch in chosen:
        axis |= stretch.axes
        cuts |= stretch.cuts
    cuts |= _backward_cuts(graph, parts, axis)
    target = dict(graph.updates)
    updates = (graph.task[name] for name in cuts if graph.task[name].target in UPDATES)
    in_parts = {new: target[new] for task in updates for new in task.outputs}
    whole = replace(graph, updates=tuple(pair for pair in graph.updates if pair[0] not in in_parts))
    cut = Splitter(whole, (1,) * parts, cuts, axis, {}, "features").run()
    return _updating(replace(_with_slices(cut), split=f"{LABEL}{cut.split}"), in_parts, parts)


def _updating(graph: Graph, in_parts: Mapping[str, str], parts: int) -> Graph:
    """Return the graph in which parts of new values update parts of states. `in_parts`: the state for each new
    value that is made in parts."""
    if not in_parts:
        return graph
    pairs = tuple(
        (f"{new}#{at}", f"{target}#{at}") for new, target in in_parts.items() for at in range(parts)
    )
    targets = {target for _, target in pairs}
    carried = (name for name in graph.carried if name not in in_parts.values())
    return replace(
        graph, updates=(*graph.updates, *pairs), carried=(*carried, *(n for n in graph.state if n in targets))
    ).check()


def _separable(graph: Graph, chosen: Iterable[Stretch]) -> Graph:
    """Replace lookups by tasks that also support a part of the table; give biases of rows their own tasks."""
    lookups = {name for stretch in chosen for name in stretch.embeddings}
    rows = {name for stretch in chosen for name in stretch.rows}
    tasks: list[Task] = []
    values: list[Value] = list(graph.values)
    for task in graph.tasks:
        if task.name in lookups:
            count = graph.value[task.inputs[0]].shape[0]
            tasks.append(replace(task, target=WORDS, args=(*task.args[:2], 0, count), kwargs=(), cuts=()))
        elif task.name in rows and len(task.inputs) > 2:
            (output,) = task.outputs
            product = f"{output}#product"
            values.append(replace(graph.value[output], name=product, storage=product, label="product"))
            tasks.append(replace(task, args=task.args[:2], kwargs=(), outputs=(product,), cuts=()))
            tasks.append(
                replace(
                    task, name=f"{task.name}#bias", target="aten.add.Tensor", args=(Ref(product), Ref(task.inputs[2])),
                    kwargs=(), flops=0, cuts=(), origin=task.origin or task.name,
                )
            )  # fmt: skip
        else:
            tasks.append(task)
    return replace(graph, values=tuple(values), tasks=tuple(tasks))


def _forward(graph: Graph) -> Graph:
    """Return the forward of a joint graph, with the results of its call."""
    if all(task.phase == "forward" for task in graph.tasks):
        return graph
    tasks = [task for task in graph.tasks if task.phase == "forward"]
    there = {*graph.inputs, *graph.state, *(name for task in tasks for name in task.outputs)}
    return graph.with_tasks(
        tasks,
        outputs=tuple(name for name in graph.outputs if name in there),
        updates=tuple((new, target) for new, target in graph.updates if new in there),
        flat=(),
    )


def _backward_cuts(graph: Graph, parts: int, axis: dict[str, int]) -> dict[str, Cut]:
    """Return the cuts of tasks after the forward that read split values, by name.

    `axis` has the axes of split values, weights included; those of the outputs are added to it. The gradient
    of a split weight is split like the weight, and so are its update and optimizer state. A task without a
    matching cut stays whole. Linear in tasks and cuts.
    """
    cuts: dict[str, Cut] = {}
    for task in graph.tasks:
        if task.phase == "forward" or task.random or axis.keys().isdisjoint(task.inputs):
            continue
        cut = _update(task, axis) if task.target in UPDATES else _agreeing(graph, task, parts, axis)
        if cut is None:
            continue
        cuts[task.name] = cut
        axis.update(cut_axes(task, cut))
    return cuts


def _agreeing(graph: Graph, task: Task, parts: int, axis: Mapping[str, int]) -> Cut | None:
    """Return the cut of a task that uses all split inputs as they are and splits the fewest others."""
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
    """Return the cut of one parameter's update and state; None unless its gradient is split like it."""
    item, *more = task.args
    assert isinstance(item, tuple)
    _, _, parameter, gradient, factor, *_ = item
    assert isinstance(parameter, Ref) and isinstance(gradient, Ref)
    place = axis.get(parameter.value)
    if more or place is None or axis.get(gradient.value) != place:
        return None
    one = factor.value if isinstance(factor, Ref) else None
    return Cut(tuple(None if name == one else place for name in task.inputs), (place,) * len(task.outputs))


def _with_slices(graph: Graph) -> Graph:
    """Return the graph in which each slice of a state is itself a state: resident, streamed or changing like
    the whole.

    The whole stays a state even if nothing reads it, since the user holds it. Tasks still slice updated
    state. Lookups in a part of a table get the first row of the part.
    """
    values = dict(graph.value)
    parts: dict[str, list[str]] = {}
    tasks: list[Task] = []
    for task in graph.tasks:
        of = task.inputs[0] if task.target == PART else ""
        if of not in graph.state or of in graph.mutated:
            if task.target == WORDS and (part := values[task.inputs[0]].slice):
                task = replace(task, args=(*task.args[:2], part.start, task.args[3]))
            tasks.append(task)
            continue
        (output,), (_, axis, start, stop, count) = (
            task.outputs,
            cast(tuple[Any, int, int, int, int], task.args),
        )
        whole = values[of]
        unit = whole.shape[axis] // count
        part = Slice(of, axis, start * unit, (stop - start) * unit)
        values[output] = replace(
            values[output], kind="state", path=whole.path, storage=whole.storage, slice=part
        )
        parts.setdefault(of, []).append(output)

    def alike(names: Iterable[str]) -> tuple[str, ...]:
        return (*names, *(part for name in names for part in parts.get(name, ())))

    return graph.with_tasks(
        tasks,
        values=tuple(values.values()),
        state=alike(graph.state),
        changing=alike(graph.changing),
        streamed=alike(graph.streamed),
    )


def feature_cuts(graph: Graph, price: Price, costed: CostedGraph, *, forced: bool) -> Iterator[CostedGraph]:
    """Yield the graph, unsplit in `costed`, with products in 2, 3, … parts.

    With `forced`, all products are split, in up to as many parts as there are lanes. Otherwise, the limit is
    the number of devices: lanes of one device share its memory, which limits products of one row. For a batch
    of one row, products longer than `LEAST_PRODUCT_S` are split; for any batch, pairs whose weights and
    updates do not fit in some device's memory.
    """
    devices = costed.machine.devices
    count = sum(device.lanes for device in devices) if forced else len(devices)
    cap = min((d.memory_bytes for d in devices if d.memory_bytes is not None), default=math.inf)
    one_row = (batch_of(graph) or 1) < 2
    if not (forced or one_row or math.isfinite(cap)):
        return
    for parts in range(2, min(count, MOST_PARTS) + 1):
        begun = [
            stretch.tasks[0]
            for stretch in products(graph, parts)
            if (forced and stretch.columns)
            or _held(graph, stretch) > cap
            or (one_row and sum(costed.cost[name].least for name in stretch.tasks) > LEAST_PRODUCT_S)
        ]
        if begun:
            yield price(split_features(graph, parts, begun))


def _held(graph: Graph, stretch: Stretch) -> int:
    """Return the bytes of a stretch's weights and of the inputs and outputs of their updates."""
    weights = {name for name in stretch.axes if name in graph.state}
    readers = (graph.task[reader] for name in weights for reader in graph.readers[name])
    updates = [task for task in readers if task.phase == "update"]
    beside = {name for task in updates for name in (*task.inputs, *task.outputs)}
    return sum(graph.value[name].bytes for name in weights | beside)
