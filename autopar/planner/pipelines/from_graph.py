"""A chain from a captured graph: its forward tasks in order, each with its share of the backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir.graph import Graph, Task
from .chain import Chain, RowCost, Unit

Price = Callable[[Task], tuple[RowCost, ...]]
"""Seconds of a task on each kind of process."""

_PRODUCTS = ("aten.linear.", "aten.addmm.", "aten.mm.", "aten.matmul.")


def chain_of(
    graph: Graph,
    kinds: Sequence[str],
    price: Price,
    rows: int,
    repeats: Mapping[str, int] | None = None,
) -> Chain:
    """Build the chain of a graph captured with a batch of `rows`: one unit for each forward task except views.

    A backward task belongs to the last unit of its module. `repeats`: by the path of a list of equal modules captured
    with three of them, their real number: the second one stands for all between the first and the last.
    """
    builder = _Builder(graph, price, rows, [*(repeats or {})])
    for task in graph.tasks:
        builder.add(task)
    units = builder.units()
    for path, count in (repeats or {}).items():
        units = _repeated(units, path, count)
    return Chain(graph.name, tuple(kinds), tuple(units)).check()


@dataclass
class _Draft:
    """A unit under construction: for each kind, seconds that depend on rows and seconds that do not."""

    task: Task
    forward: tuple[RowCost, ...]
    backward: list[RowCost]
    of_weights: float = 0.0
    saved: float = 0.0
    crossing: float = 0.0
    divisible: bool = False
    summed: float = 0.0


@dataclass
class _Builder:
    graph: Graph
    price: Price
    rows: int
    lists: list[str]
    drafts: list[_Draft] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    """The unit that makes each storage of the forward."""
    ends: dict[str, int] = field(default_factory=dict)
    """The last forward unit that reads each storage."""
    saved: set[str] = field(default_factory=set)
    parted: set[str] = field(default_factory=set)
    """Values that tensor parallelism divides."""
    module: dict[str, int] = field(default_factory=dict)
    last: int = 0

    def add(self, task: Task) -> None:
        """Add one task."""
        if task.phase == "forward":
            self._forward(task)
        elif self.drafts:
            self._backward(task)

    def _storage(self, value: str) -> str:
        return self.graph.value[value].storage

    def _forward(self, task: Task) -> None:
        if task.free:
            if any(value in self.parted for value in task.inputs):
                self.parted.update(task.outputs)
        else:
            costs = self.price(task)
            self.drafts.append(_Draft(task, costs, [RowCost()] * len(costs)))
            self._divide(task, self.drafts[-1])
        number = max(0, len(self.drafts) - 1)
        self.last = number
        self.module[task.module] = number
        for value in task.inputs:
            if self._storage(value) in self.made:
                self.ends[self._storage(value)] = number
        for value in task.outputs:
            self.made.setdefault(self._storage(value), number)

    def _divide(self, task: Task, draft: _Draft) -> None:
        """Divide products alternately: a whole input by columns, a divided one by rows, then summed. An embedding is
        divided by rows."""
        value = self.graph.value
        matrix = any(value[name].kind == "state" and len(value[name].shape) > 1 for name in task.inputs)
        parts = any(name in self.parted for name in task.inputs)
        whole = sum(value[name].bytes for name in task.outputs[:1]) / self.rows
        if matrix and task.target.startswith("aten.embedding."):
            draft.divisible, draft.summed = True, whole
        elif matrix and task.target.startswith(_PRODUCTS):
            draft.divisible = True
            if parts:
                draft.summed = whole
            else:
                self.parted.update(task.outputs)
        elif parts:
            draft.divisible = True
            self.parted.update(task.outputs)

    def _backward(self, task: Task) -> None:
        number = self.module.get(task.module, self.last) if task.module else self.last
        self.last = number
        self.saved.update(self._storage(value) for value in task.inputs if self._storage(value) in self.made)
        if task.free:
            return
        draft, costs = self.drafts[number], self.price(task)
        draft.backward = [
            RowCost(a.fixed_s + b.fixed_s, a.per_row_s + b.per_row_s) for a, b in zip(draft.backward, costs)
        ]
        if any(value in self._gradients for value in task.outputs):
            draft.of_weights += costs[0].seconds(self.rows)

    @property
    def _gradients(self) -> frozenset[str]:
        return frozenset(self.graph.outputs)

    def units(self) -> list[Unit]:
        """Return all units."""
        value = self.graph.value
        for storage, number in self.made.items():
            nbytes = value[storage].bytes / self.rows
            if storage in self.saved:
                self.drafts[number].saved += nbytes
            for at in range(number, self.ends.get(storage, number)):
                self.drafts[at].crossing += nbytes
        return [self._unit(draft) for draft in self.drafts]

    def _unit(self, draft: _Draft) -> Unit:
        task, value = draft.task, self.graph.value
        outputs = self._gradients
        state = {value[name].storage: value[name] for name in task.inputs if value[name].kind == "state"}
        trained = {key: v for key, v in state.items() if f"{v.path}.grad" in outputs}
        total = draft.backward[0].seconds(self.rows)
        return Unit(
            task.name, draft.forward, tuple(draft.backward),
            tuple((key, v.bytes) for key, v in trained.items()),
            sum(v.bytes for key, v in state.items() if key not in trained),
            draft.saved, draft.crossing, task.module,
            min(1.0, draft.of_weights / total) if total else 0.5,
            self._block(task.module), draft.divisible, draft.summed,
        )  # fmt: skip

    def _block(self, module: str) -> str:
        """Return the repeated layer that a module belongs to."""
        for path in self.lists:
            if module.startswith(f"{path}."):
                return f"{path}.{module[len(path) + 1 :].split('.')[0]}"
        return ""


def _repeated(units: Sequence[Unit], path: str, count: int) -> list[Unit]:
    """Repeat the second of three layers to reach `count` in all."""
    places = [number for number, unit in enumerate(units) if unit.block == f"{path}.1"]
    first, stop = places[0], places[-1] + 1
    body = units[first:stop]
    layers = [_moved(unit, path, "1", str(number)) for number in range(1, count - 1) for unit in body]
    rest = [_moved(unit, path, "2", str(count - 1)) for unit in units[stop:]]
    return [*units[:first], *layers, *rest]


def _moved(unit: Unit, path: str, old: str, new: str) -> Unit:
    """Return the unit moved to another layer of its list."""
    here, there = f"{path}.{old}", f"{path}.{new}"
    if unit.block != here:
        return unit
    return replace(
        unit,
        name=f"{unit.name}, layer {new}" if new != old else unit.name,
        module=there + unit.module[len(here) :],
        block=there,
        weights=tuple(
            (there + key[len(here) :] if key.startswith(f"{here}.") else key, nbytes)
            for key, nbytes in unit.weights
        ),
    )
