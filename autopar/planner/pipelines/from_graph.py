"""A chain from a captured graph: its forward tasks in order, each with its share of the backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...ir.graph import Graph, Task
from .chain import Chain, RowCost, Unit

Price = Callable[[Task], tuple[RowCost, ...]]
"""Seconds of a task on each kind of process."""

_PRODUCTS = ("aten.linear.", "aten.addmm.", "aten.mm.", "aten.matmul.")


def chain_of(
    graph: Graph, kinds: Sequence[str], price: Price, rows: int, repeats: Mapping[str, int] | None = None
) -> Chain:
    """Build the chain of a graph captured with a batch of `rows`: one unit for each forward task except views.

    A backward task belongs to the last unit of its module. `repeats`: the real length, by path, of each list
    of equal modules captured with three; the second stands for all between the first and the last.
    """
    builder = _Builder(graph, price, rows, [*(repeats or {})])
    for task in graph.tasks:
        builder.add(task)
    units = builder.units()
    for path, count in (repeats or {}).items():
        units = _repeated(units, path, count)
    return Chain(graph.name, tuple(kinds), tuple(units))


class _Builder:
    """Units of the forward tasks so far, and the seconds for gradients of weights in the backward of each."""

    def __init__(self, graph: Graph, price: Price, rows: int, lists: Sequence[str]) -> None:
        self.graph, self.price, self.rows, self.lists = graph, price, rows, lists
        self.gradients = frozenset(graph.outputs)
        self.drafts: list[Unit] = []
        self.of_weights: list[float] = []
        # By storage of the forward, the unit that makes it and the last one that reads it.
        self.makers: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.saved: set[str] = set()
        # Values that tensor parallelism divides.
        self.parted: set[str] = set()
        self.module: dict[str, int] = {}
        self.last = 0

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
            self.drafts.append(self._unit(task))
            self.of_weights.append(0.0)
        number = max(0, len(self.drafts) - 1)
        self.last = number
        self.module[task.module] = number
        for value in task.inputs:
            if self._storage(value) in self.makers:
                self.ends[self._storage(value)] = number
        for value in task.outputs:
            self.makers.setdefault(self._storage(value), number)

    def _unit(self, task: Task) -> Unit:
        """Return the unit of a task, still without its backward, saved bytes and crossing bytes."""
        value, costs = self.graph.value, self.price(task)
        state = {value[name].storage: value[name] for name in task.inputs if value[name].kind == "state"}
        trained = {key: v for key, v in state.items() if f"{v.path}.grad" in self.gradients}
        divisible, summed = self._divided(task)
        return Unit(
            task.name,
            costs,
            (RowCost(),) * len(costs),
            tuple((key, v.bytes) for key, v in trained.items()),
            sum(v.bytes for key, v in state.items() if key not in trained),
            module=task.module,
            block=self._block(task.module),
            divisible=divisible,
            sum_bytes=summed,
        )

    def _divided(self, task: Task) -> tuple[bool, float]:
        """Return whether tensor parallelism divides a task, and the bytes per row that are then summed.

        Products are divided alternately: a whole input by columns, a divided one by rows, then summed. An embedding is
        divided by rows.
        """
        value = self.graph.value
        matrix = any(value[name].kind == "state" and len(value[name].shape) > 1 for name in task.inputs)
        parts = any(name in self.parted for name in task.inputs)
        product = matrix and task.target.startswith(_PRODUCTS)
        if matrix and (task.target.startswith("aten.embedding.") or (product and parts)):
            return True, sum(value[name].bytes for name in task.outputs[:1]) / self.rows
        if product or parts:
            self.parted.update(task.outputs)
        return product or parts, 0.0

    def _block(self, module: str) -> str:
        """Return the repeated layer that a module belongs to."""
        for path in self.lists:
            if module.startswith(f"{path}."):
                return f"{path}.{module[len(path) + 1 :].split('.')[0]}"
        return ""

    def _backward(self, task: Task) -> None:
        number = self.module.get(task.module, self.last) if task.module else self.last
        self.last = number
        self.saved |= {self._storage(value) for value in task.inputs} & self.makers.keys()
        if task.free:
            return
        unit, costs = self.drafts[number], self.price(task)
        both = tuple(so_far.plus(cost) for so_far, cost in zip(unit.backward, costs))
        self.drafts[number] = replace(unit, backward=both)
        if any(value in self.gradients for value in task.outputs):
            self.of_weights[number] += costs[0].seconds(self.rows)

    def units(self) -> list[Unit]:
        """Return all units."""
        saved, crossing = [0.0] * len(self.drafts), [0.0] * len(self.drafts)
        for storage, number in self.makers.items():
            nbytes = self.graph.value[storage].bytes / self.rows
            if storage in self.saved:
                saved[number] += nbytes
            for at in range(number, self.ends.get(storage, number)):
                crossing[at] += nbytes
        units = []
        for unit, keeps, crosses, of_weights in zip(self.drafts, saved, crossing, self.of_weights):
            total = unit.backward[0].seconds(self.rows)
            share = min(1.0, of_weights / total) if total else 0.5
            units.append(replace(unit, saved_bytes=keeps, crossing_bytes=crosses, weight_share=share))
        return units


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
