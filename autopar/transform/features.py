"""Stretches of a forward graph that may be cut along features: products with cut outputs (columns), tasks
that pass parts on, and products that add parts up (rows).

The pairs are those of Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using
model parallelism" (arXiv:1909.08053, 2019). They are found by the cuts that tasks allow, so heads, gates and
the tasks in between need not be known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from ..ir.graph import SUMMED, Cut, Graph, Task
from .divide import depending

LINEAR = "aten.linear.default"
EMBEDDING = "aten.embedding.default"
_DROPOUTS = ("aten.native_dropout.", "aten.dropout.", "aten.alpha_dropout.")
"""Random operators that treat elements independently."""


@dataclass(frozen=True)
class Stretch:
    """Tasks by name: linears split by columns, those split by rows, and tasks in between.

    embeddings: lookups in a table split by rows.
    cuts: the cut of each task; that of a row leaves out the bias.
    axes: the axis of each split value, weights and biases included.
    refusal: reason why the stretch cannot be split; empty if it can.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks of the stretch."""
        return (*self.embeddings, *self.columns, *self.inner, *self.rows)


def stretches(
    graph: Graph, parts: int, learned: Collection[str], *, masks: Collection[str] = ()
) -> list[Stretch]:
    """Return disjoint stretches that can be split into `parts` equal parts and, as refusals, why other products
    cannot.

    learned: states that need gradients.
    masks: whole values that may be split as their readers require.

    If a product begins no pair, a stretch of one column, whose parts are joined, follows the refusal. Each
    task is in at most one stretch that is no refusal. Linear, for each product, in its stretch.
    """
    stretches: list[Stretch] = []
    used: set[str] = set()
    tainted = depending(graph, learned)

    def enter(stretch: Stretch) -> bool:
        stretches.append(stretch)
        if not stretch.refusal:
            used.update(stretch.tasks)
        return not stretch.refusal

    for table in dict.fromkeys(
        t.inputs[0] for t in graph.tasks if t.target == EMBEDDING and _looks_up(graph, t)
    ):
        enter(_vocabulary(graph, table, parts))
    for task in graph.tasks:
        if not _has_weight(graph, task) or task.name in used:
            continue
        growth = _Growth(graph, parts, tainted, used, masks)
        if not enter(growth.grown(task)):
            enter(_alone(graph, task, parts))
    return stretches


class _Refused(Exception):
    """Raised if a stretch ends without a row; the text is the reason."""


@dataclass
class _Growth:
    """A stretch under construction, starting at one column."""

    graph: Graph
    parts: int
    tainted: Collection[str]
    used: Collection[str]
    masks: Collection[str]
    axis: dict[str, int] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)
    inner: dict[str, None] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    todo: list[str] = field(default_factory=list)

    def grown(self, first: Task) -> Stretch:
        """Return the stretch that a product begins, or the reason why there is none."""
        try:
            self.column(first)
            while self.todo:
                name = self.todo.pop()
                if name in self.graph.results:
                    raise _Refused(f"the caller gets its output ({name!r})")
                for reader in self.graph.readers[name]:
                    self.read(self.graph.task[reader], name)
            self.check()
        except _Refused as refused:
            return Stretch(columns=(first.name,), refusal=str(refused))
        return Stretch(
            tuple(self.columns), tuple(self.rows), tuple(self.inner), cuts=self.cuts, axes=self.axis
        )

    def column(self, task: Task) -> None:
        """Split a product by its outputs."""
        if task.name not in self.columns:
            self.claim(task)
            self.columns[task.name] = None
            self.cuts[task.name] = cut = _by_columns(self.graph, task)
            self.axis.update(dict.fromkeys(task.inputs[1:], 0))
            (output,), (axis,) = task.outputs, cut.outputs
            assert axis is not None
            self.hold(output, axis, task)

    def row(self, task: Task, split: str) -> None:
        """Split a product by its inputs."""
        if self.axis[split] != _last(self.graph, split):
            raise _Refused(f"{task.where} reads what would be cut along another axis than its features")
        if task.name not in self.rows:
            self.claim(task)
            self.rows[task.name] = None
            self.cuts[task.name] = Cut((self.axis[split], 1), (SUMMED,))
            self.axis[task.inputs[1]] = 1

    def claim(self, task: Task) -> None:
        """Refuse weights that other tasks use too."""
        if task.name in self.used:
            raise _Refused(f"{task.where} belongs to another pair")
        for weight in task.inputs[1:]:
            other = next((name for name in self.graph.readers[weight] if name != task.name), None)
            if other is not None:
                raise _Refused(f"its weight {weight!r} is read by {self.graph.task[other].where} too")

    def hold(self, name: str, axis: int, task: Task) -> None:
        """Mark a value as split."""
        if self.axis.setdefault(name, axis) != axis:
            raise _Refused(f"{name!r} would be cut along two axes")
        shape = self.graph.value[name].shape
        if shape[axis] % self.parts:
            raise _Refused(
                f"{task.where} makes {shape[axis]} pieces (axis {axis} of {list(shape)}), heads for example, which "
                f"{self.parts} ranks cannot share evenly; a multiple of {self.parts} can be cut"
            )
        self.todo.append(name)

    def read(self, task: Task, split: str) -> None:
        """Handle a reader of a split value: it is a row, or passes the parts on."""
        if task.name in self.inner:
            return
        if _has_weight(self.graph, task) and task.inputs[0] == split:
            self.row(task, split)
        elif task.random and task.target.startswith(_DROPOUTS):
            axis = self.axis[split]
            self.enter(task, Cut((axis,), (axis,) * len(task.outputs)))
        elif task.random:
            raise _Refused(
                f"{task.where} draws random numbers for what would be cut; set its dropout to 0, or write it as "
                "nn.Dropout"
            )
        else:
            place = task.inputs.index(split)
            self.enter(task, self.cut(task, lambda cut: cut.inputs[place] == self.axis[split]))

    def cut(self, task: Task, fits: Callable[[Cut], bool]) -> Cut:
        """Return the first cut of a task that `fits` and agrees with the split values."""
        for cut in task.cuts:
            pairs = zip(task.inputs, cut.inputs)
            agree = all(name not in self.axis or self.axis[name] == axis for name, axis in pairs)
            if fits(cut) and agree and all(axis is not None and axis >= 0 for axis in cut.outputs):
                return cut
        raise _Refused(f"{task.where} does not let parts of the features through")

    def enter(self, task: Task, cut: Cut) -> None:
        """Split a task between columns and rows; its other inputs must be split or equal on all ranks."""
        if task.name in self.used:
            raise _Refused(f"{task.where} belongs to another pair")
        self.inner[task.name], self.cuts[task.name] = None, cut
        for name, axis in zip(task.inputs, cut.inputs):
            if axis is not None:
                self.want(name, axis)
            elif name in self.tainted:
                raise _Refused(
                    f"{task.where} reads all of {name!r}, which is learned, so that each rank would have but a part of "
                    "its gradient"
                )
        for name, axis_out in zip(task.outputs, cut.outputs):
            assert axis_out is not None
            self.hold(name, axis_out, task)

    def want(self, name: str, axis: int) -> None:
        """Split another input of a task that was reached through one of its inputs."""
        if self.axis.get(name) == axis:
            return
        if name in self.masks and name not in self.axis:
            self.axis[name] = axis
            return
        producer = self.graph.producer.get(name)
        if producer is None:
            raise _Refused(f"{name!r}, which no product makes, would have to be cut as well")
        task = self.graph.task[producer]
        if task.target == EMBEDDING:
            raise _Refused(f"{task.where} makes what would have to be cut as well")
        if _has_weight(self.graph, task):
            if axis != _last(self.graph, name):
                raise _Refused(f"{task.where} would be cut along another axis than its features")
            self.column(task)
        elif task.name in self.inner or task.random:
            raise _Refused(f"{task.where} makes what would have to be cut in another way")
        else:
            place = task.outputs.index(name)
            self.enter(task, self.cut(task, lambda cut: cut.outputs[place] == axis))

    def check(self) -> None:
        """Refuse if there is no row, or if a task needs a split value whole."""
        if not self.rows:
            raise _Refused("nothing adds its parts up")
        for name in self.inner:
            task = self.graph.task[name]
            for name_in, axis in zip(task.inputs, self.cuts[name].inputs):
                if self.axis.get(name_in) != axis:
                    raise _Refused(f"{task.where} needs {name_in!r} whole")
        for name in self.columns:
            task = self.graph.task[name]
            if task.inputs[0] in self.axis:
                raise _Refused(f"{task.where} needs its input whole")


def _last(graph: Graph, name: str) -> int:
    """Return the last axis of a value: the features of a linear's input or output."""
    return len(graph.value[name].shape) - 1


def _has_weight(graph: Graph, task: Task) -> bool:
    """Return True for a linear with a matrix as weight whose inputs, except the first, are all state."""
    if task.target != LINEAR or len(task.inputs) < 2 or task.inputs[0] in graph.state:
        return False
    weights = [graph.value[name] for name in task.inputs[1:]]
    return all(value.kind == "state" for value in weights) and len(weights[0].shape) == 2


def _looks_up(graph: Graph, task: Task) -> bool:
    return graph.value[task.inputs[0]].kind == "state" and len(task.inputs) == 2


def _by_columns(graph: Graph, task: Task) -> Cut:
    """Return the cut of a product by its outputs, which cuts its weight and bias along axis 0."""
    return Cut((None, *(0 for _ in task.inputs[1:])), (_last(graph, task.outputs[0]),))


def _alone(graph: Graph, task: Task, parts: int) -> Stretch:
    """Return a stretch of one product, split by its outputs, which are joined at once."""
    rows = graph.value[task.inputs[1]].shape[0]
    shared = [name for weight in task.inputs[1:] for name in graph.readers[weight] if name != task.name]
    if shared:
        return Stretch((task.name,), refusal=f"its weight is read by {graph.task[shared[0]].where} too")
    if rows % parts:
        return Stretch((task.name,), refusal=f"its {rows} outputs are no multiple of {parts}")
    axes = {task.outputs[0]: _last(graph, task.outputs[0]), **dict.fromkeys(task.inputs[1:], 0)}
    return Stretch((task.name,), cuts={task.name: _by_columns(graph, task)}, axes=axes)


def _vocabulary(graph: Graph, table: str, parts: int) -> Stretch:
    """Return lookups in a table split by rows, with the linears that share the table (tied embeddings)."""
    readers = [graph.task[name] for name in graph.readers[table]]
    lookups = tuple(task.name for task in readers if task.target == EMBEDDING and _looks_up(graph, task))
    heads = [task for task in readers if _has_weight(graph, task) and task.inputs[1:] == (table,)]
    rows = graph.value[table].shape[0]
    refusal = ""
    if other := next((t for t in readers if t.name not in lookups and t not in heads), None):
        refusal = f"its table {table!r} is read by {other.where} too"
    elif rows % parts:
        refusal = f"its {rows} rows are no multiple of {parts}; pad the vocabulary"
    cuts = dict.fromkeys(lookups, Cut((0, None), (SUMMED,)))
    cuts |= {task.name: _by_columns(graph, task) for task in heads}
    axes = {table: 0, **{task.outputs[0]: _last(graph, task.outputs[0]) for task in heads}}
    return Stretch(tuple(task.name for task in heads), (), (), lookups, cuts, axes, refusal)
