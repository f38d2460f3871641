"""Split large products of a graph along features, so that devices can share one layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import SUMMED, Cut, Graph, Ref, Task, Value
from ..ir.slices import WORDS
from .feature_gradients import backward_cuts, forward_of, updates_in_parts
from .features import Stretch, stretches
from .row_sums import drawn
from .slices import with_slices
from .split import cut_up

LABEL = "features in "
"""Prefix of `Graph.split` if features, not the batch, are split."""


@dataclass
class _Found:
    """Tasks split along features; see `split.Cuts`."""

    rows: int
    axis: dict[str, int] = field(default_factory=dict)
    outer: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)


def products(graph: Graph, parts: int) -> list[Stretch]:
    """Return stretches of the forward that can be split into `parts` parts, without those that draw random numbers.

    Parts would draw other numbers; dropouts draw their whole masks beforehand (`row_sums.drawn`). Tables are not split
    in training.
    """
    trained = any(task.phase != "forward" for task in graph.tasks)
    forward = forward_of(drawn(graph))
    masks = {name for task in forward.tasks if task.random for name in task.outputs}
    return [
        stretch
        for stretch in stretches(forward, parts, (), masks=masks)
        if not stretch.refusal
        and not (stretch.embeddings and (trained or graph.mutated.intersection(dict(stretch.axes))))
        and not any(forward.task[name].random for name in stretch.tasks)
    ]


def split_features(graph: Graph, parts: int, wanted: Collection[str]) -> Graph:
    """Split the stretches that begin with a `wanted` task; return the graph itself if there are none.

    Columns use blocks of rows of their weights, rows blocks of columns, each a state of its own; the summands of rows
    are added, then their bias. Each part of a table split by words looks up its own words, and the results are added.
    The rest of the backward and the updates of weights are split too; the updated states are then the parts. Parts are
    named as in `split`.
    """
    chosen = [stretch for stretch in products(graph, parts) if stretch.tasks[0] in wanted]
    if not chosen or parts < 2:
        return graph
    graph = _by_words(drawn(graph), {name for stretch in chosen for name in stretch.embeddings})
    graph = _biases_apart(graph, {name for stretch in chosen for name in stretch.rows})
    found = _Found(parts)
    for stretch in chosen:
        found.cuts.update((name, Cut((0, None), (SUMMED,))) for name in stretch.embeddings)
        for name in stretch.columns:
            task = graph.task[name]
            last = len(graph.value[task.outputs[0]].shape) - 1
            found.cuts[name] = Cut((None, *(0 for _ in task.inputs[1:])), (last,))
        found.cuts.update(zip(stretch.inner, stretch.passes))
        for name in stretch.rows:
            last = len(graph.value[graph.task[name].inputs[0]].shape) - 1
            found.cuts[name] = Cut((last, 1), (SUMMED,))
        found.axis.update(stretch.axes)
    found.cuts |= backward_cuts(graph, parts, found.axis)
    apart = updates_in_parts(graph, found.cuts)
    rest = replace(graph, updates=tuple(pair for pair in graph.updates if pair[0] not in apart))
    cut = _from_first(with_slices(cut_up(rest, found, (1,) * parts, label=LABEL, noun="features")))
    return _updating(cut, apart, parts) if apart else cut


def _updating(graph: Graph, apart: Mapping[str, str], parts: int) -> Graph:
    """Return the graph in which parts of states are updated by parts of their new values; `apart`: parts by whole."""
    pairs = tuple((f"{made}#{at}", f"{target}#{at}") for made, target in apart.items() for at in range(parts))
    targets = {target for _, target in pairs}
    carried = (name for name in graph.carried if name not in apart.values())
    return replace(
        graph, updates=(*graph.updates, *pairs), carried=(*carried, *(n for n in graph.state if n in targets))
    ).check()


def _by_words(graph: Graph, lookups: Collection[str]) -> Graph:
    """Replace lookups by tasks that also support a part of the table."""

    def words(task: Task) -> Task:
        table, indices = task.args[:2]
        count = graph.value[task.inputs[0]].shape[0]
        return replace(task, target=WORDS, args=(table, indices, 0, count), kwargs=(), cuts=())

    return replace(graph, tasks=tuple(words(task) if task.name in lookups else task for task in graph.tasks))


def _from_first(graph: Graph) -> Graph:
    """Pass the first row of each part to lookups in parts."""

    def placed(task: Task) -> Task:
        part = graph.value[task.inputs[0]].slice if task.target == WORDS else None
        return replace(task, args=(*task.args[:2], part.start, task.args[3])) if part else task

    return replace(graph, tasks=tuple(map(placed, graph.tasks)))


def _biases_apart(graph: Graph, rows: Collection[str]) -> Graph:
    """Separate the biases of these linears into tasks of their own."""
    tasks: list[Task] = []
    values: list[Value] = list(graph.values)
    for task in graph.tasks:
        if task.name not in rows or len(task.inputs) < 3:
            tasks.append(task)
            continue
        (made,) = task.outputs
        product = f"{made}#product"
        values.append(replace(graph.value[made], name=product, storage=product))
        tasks.append(replace(task, args=task.args[:2], kwargs=(), outputs=(product,), cuts=()))
        tasks.append(
            replace(
                task, name=f"{task.name}#bias", target="aten.add.Tensor", args=(Ref(product), Ref(task.inputs[2])),
                kwargs=(), flops=0, cuts=(), origin=task.origin or task.name,
            )
        )  # fmt: skip
    return replace(graph, values=tuple(values), tasks=tuple(tasks))
