"""Cut the large products of a graph along features, so that devices can share one layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import SUMMED, Cut, Graph, Ref, Task, Value
from .feature_gradients import backward_cuts, forward_of, updates_in_parts
from .features import Stretch, stretches
from .slices import with_slices
from .split import cut_up

LABEL = "features in "
"""How `Graph.split` begins where features were cut, not the batch."""


@dataclass
class _Found:
    """The tasks that are cut, along features; see `split.Cuts`."""

    rows: int
    axis: dict[str, int] = field(default_factory=dict)
    outer: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)


def products(graph: Graph, parts: int) -> list[Stretch]:
    """The stretches of a graph's forward that can be cut into so many parts, those that draw random numbers left out:
    parts would draw other ones."""
    forward = forward_of(graph)
    return [
        stretch
        for stretch in stretches(forward, parts, ())
        if not (
            stretch.refusal or stretch.embeddings or any(graph.task[name].random for name in stretch.tasks)
        )
    ]


def split_features(graph: Graph, parts: int, wanted: Collection[str]) -> Graph:
    """The graph with those stretches in parts that begin with a `wanted` task; the graph itself where there is none.

    Columns take blocks of rows of their weights, rows blocks of columns, each a state of its own; the summands of rows
    are added up, then their bias. What follows of them in the backward is in parts too, and so are the updates of their
    weights: then the parts are what is updated. Parts are named as `split` names them.
    """
    chosen = [stretch for stretch in products(graph, parts) if stretch.columns[0] in wanted]
    if not chosen or parts < 2:
        return graph
    graph = _biases_apart(graph, {name for stretch in chosen for name in stretch.rows})
    found = _Found(parts)
    for stretch in chosen:
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
    cut = with_slices(cut_up(rest, found, (1,) * parts, label=LABEL, noun="features"))
    return _updating(cut, apart, parts) if apart else cut


def _updating(graph: Graph, apart: Mapping[str, str], parts: int) -> Graph:
    """The graph in which the parts of states take the parts of their new values, `apart` of the wholes."""
    pairs = tuple((f"{made}#{at}", f"{target}#{at}") for made, target in apart.items() for at in range(parts))
    targets = {target for _, target in pairs}
    carried = (name for name in graph.carried if name not in apart.values())
    return replace(
        graph, updates=(*graph.updates, *pairs), carried=(*carried, *(n for n in graph.state if n in targets))
    ).check()


def _biases_apart(graph: Graph, rows: Collection[str]) -> Graph:
    """The graph with the biases of these linears added by tasks of their own."""
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
                kwargs=(), flops=0, cuts=(),
            )
        )  # fmt: skip
    return replace(graph, values=tuple(values), tasks=tuple(tasks))
