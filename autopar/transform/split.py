"""Split the batch of a graph into parts, so that devices can share an otherwise sequential chain.

Each task that treats rows independently is replaced by one task for each part; a value is rejoined only where it is
needed whole, once for all such readers. Where a task contracts the batch, its parts are summed in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from numbers import Real
from typing import Literal, TypeAlias

from ..errors import PlanError
from ..ir.graph import JOIN, OWN, PART, SUM, SUMMED, Argument, Cut, Graph, Ref, Task, Value
from .batch_axis import LIKE, batch_of, best_flow

TURNS = 6
"""Limit on the chosen shares that are predicted; after it, no shares are assumed to fit."""

Peaks: TypeAlias = Callable[[tuple[int, ...]], Sequence[int] | None]
"""Returns the peak bytes of each device for the rows on each; None if these rows cannot be placed."""


def even(batch: int, parts: int) -> tuple[int, ...]:
    """Return rows of `parts` parts that differ by at most one; fewer parts if there are not enough rows."""
    return shares(batch, (1.0,) * parts)


def shares(batch: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return the rows of each part in proportion to the weights, without parts that have no rows."""
    return tuple(rows for rows in allot(batch, weights) if rows)


def allot(batch: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Assign rows to weights, zeros included, by the largest remainder method; of equals, the first wins.

    Raises PlanError for a batch below 1 and for weights that are negative, infinite or all zero.
    """
    if batch < 1:
        raise PlanError(f"a batch of {batch} rows cannot be shared out; give at least one row")
    able = all(isinstance(weight, Real) and math.isfinite(weight) and weight >= 0 for weight in weights)
    if not able or not any(weights):
        raise PlanError(f"shares {tuple(weights)} must be finite numbers, none negative, and not all zero")
    total = math.fsum(weights)
    exact = [batch * weight / total for weight in weights]
    rows = [math.floor(share) for share in exact]
    order = sorted(range(len(rows)), key=lambda index: (rows[index] - exact[index], index))
    for index in order[: batch - sum(rows)]:
        rows[index] += 1
    return tuple(rows)


def allot_within(batch: int, speeds: Sequence[float], rooms: Sequence[float]) -> tuple[int, ...] | None:
    """Assign rows in proportion to speed, limited by each device's room; None if there is too little room.

    Rows for which a device has no room go to the others, in proportion to their speed.
    """
    full: dict[int, int] = {}
    while True:
        free = [d for d, speed in enumerate(speeds) if d not in full and speed > 0]
        rest = batch - sum(full.values())
        allotted = dict(zip(free, allot(rest, [speeds[d] for d in free]))) if rest and free else {}
        over = {d: max(0, math.floor(rooms[d])) for d, rows in allotted.items() if rows > rooms[d]}
        if not over:
            break
        full |= over
    shares = full | allotted
    return tuple(shares.get(d, 0) for d in range(len(speeds))) if sum(shares.values()) == batch else None


def allot_within_caps(
    batch: int, speeds: Sequence[float], caps: Sequence[int | None], peaks: Peaks
) -> tuple[int, ...] | None:
    """Return rows of each device in proportion to `speeds` (any unit), within `caps` (bytes; None: no limit).

    None if no shares are found that fit by `peaks`, or if plain shares by speed already fit. The bytes of a device
    grow linearly with its rows, from a constant (parameters, sums, joined values), which two predictions determine.
    The rows that fit are then assigned by speed; choices are predicted one after the other until one fits.
    """
    limits = [math.inf if cap is None else float(cap) for cap in caps]
    samples: list[dict[int, int]] = [{} for _ in speeds]

    def hold(used: Sequence[int]) -> bool:
        return all(peak <= limit for peak, limit in zip(used, limits))

    plain = allot(batch, speeds)
    used = peaks(plain)
    if used is None or hold(used):
        return None
    _record(samples, plain, used)
    # In the second prediction, every other device has more rows than in the first, the rest fewer.
    tilted = allot(batch, [speed * (1.5 if d % 2 else 0.5) for d, speed in enumerate(speeds)])
    used = peaks(tilted)
    if used is None:
        return None
    _record(samples, tilted, used)
    spare = tilted if hold(used) else None
    for _ in range(TURNS):
        rooms = [_room(known, limit) for known, limit in zip(samples, limits)]
        chosen = allot_within(batch, speeds, rooms)
        if chosen is None or (used := peaks(chosen)) is None:
            return spare
        if hold(used):
            return chosen
        _record(samples, chosen, used)
    return spare


def _record(samples: list[dict[int, int]], rows: Sequence[int], peaks: Sequence[int]) -> None:
    for known, count, peak in zip(samples, rows, peaks):
        known[count] = max(peak, known.get(count, 0))


def _room(known: dict[int, int], limit: float) -> float:
    """Return the rows that fit on a device, by the line through the two predictions nearest to its limit."""
    if math.isinf(limit):
        return math.inf
    refused = min((count for count, peak in known.items() if peak > limit), default=math.inf)
    near = sorted(known, key=lambda count: (abs(known[count] - limit), count))[:2]
    if len(near) < 2 or known[near[0]] == known[near[1]]:
        rows = math.inf if known[near[0]] <= limit else 0.0
    else:
        a, b = sorted(near)
        each = (known[b] - known[a]) / (b - a)
        rows = a + (limit - known[a]) / each if each > 0 else math.inf
    return max(0.0, min(rows, refused - 1))


def split(graph: Graph, sizes: tuple[int, ...]) -> Graph:
    """Split the batch of the graph into parts of `sizes` rows; return the graph itself if nothing is gained.

    A task `fc1` becomes `fc1#0`, `fc1#1`, … with `origin` `fc1` and `part` `rows 0–49`; values become `y#0`,
    `y#1`, …; the rejoined or summed value keeps the name `y`. Tasks with effects or without the batch stay
    whole. Raises PlanError for a size below 1, for sizes that do not sum to the batch, and if the graph is
    already split.
    """
    if graph.split:
        raise PlanError(
            f"graph {graph.name!r} is split already ({graph.split}); split the graph it came from"
        )
    rows = sum(sizes)
    if not sizes or min(sizes) < 1:
        raise PlanError(f"split sizes {sizes} must all be positive; leave a device without rows out")
    if not any(rows in graph.value[name].shape[:2] for name in graph.inputs):
        raise PlanError(
            f"split sizes {sizes} add up to {rows} rows, but the batch of graph {graph.name!r} has "
            f"{batch_of(graph)}"
        )
    flow = best_flow(graph, rows, len(sizes))
    if len(sizes) < 2 or not flow.cuts:
        return graph
    return Splitter(graph, sizes, flow.cuts, flow.axis, flow.outer).run()


@dataclass
class Splitter:
    """Builder of a split graph, in capture order. `run` splits the tasks by `cuts` into parts of `sizes` `noun`, and
    each value along its `axis`, in `outer` blocks if there are several."""

    graph: Graph
    sizes: tuple[int, ...]
    cuts: Mapping[str, Cut]
    axis: Mapping[str, int]
    outer: Mapping[str, int]
    noun: str = "rows"

    def __post_init__(self) -> None:
        graph = self.graph
        self.stops = tuple(accumulate(self.sizes))
        self.total = sum(self.sizes)
        self.values: dict[str, Value] = {value.name: value for value in graph.values if value.kind != "made"}
        self.tasks: list[Task] = []
        self.parts: dict[tuple[str, int], tuple[str, ...]] = {}
        self.results = dict.fromkeys((*graph.outputs, *(new for new, _ in graph.updates)))
        self.phase: Literal["forward", "backward", "update"] = "forward"

    def run(self) -> Graph:
        """Return the split graph."""
        later = next((task.name for task in self.graph.tasks if task.phase != "forward"), "")
        for task in self.graph.tasks:
            if task.name == later:
                self.deliver()
            self.phase = task.phase
            if task.name in self.cuts:
                self.cut(task, self.cuts[task.name])
            else:
                self.keep(task)
        self.deliver()
        return replace(
            self.graph,
            values=tuple(self.values.values()),
            tasks=tuple(self.tasks),
            split=f"{len(self.sizes)} parts: {' + '.join(map(str, self.sizes))}",
        )

    def deliver(self) -> None:
        """Rejoin the results that tasks so far make in parts."""
        for name in self.results:
            if name in self.axis and (name, self.axis[name]) in self.parts:
                producer = self.graph.producer.get(name)
                self.phase = self.graph.task[producer].phase if producer else "forward"
                self.whole(name)

    def keep(self, task: Task) -> None:
        """Append a whole task, after the joins of its inputs."""
        names = {name: self.any(name) if task.target in LIKE else self.whole(name) for name in task.inputs}
        for name in task.outputs:
            value = self.graph.value[name]
            self.values[name] = replace(value, storage=self.storage(value, name, names))
        self.tasks.append(replace(task.reading(names), after=self.after(task)))

    def cut(self, task: Task, cut: Cut) -> None:
        """Append one task for each part."""
        reads = task.inputs
        parts_in = [
            (self.whole(name),) * len(self.sizes) if axis is None else self.split(name, axis)
            for name, axis in zip(reads, cut.inputs)
        ]
        parts_out = [self.names(name, axis) for name, axis in zip(task.outputs, cut.outputs)]
        self.parts.update(
            ((name, axis), parts)
            for name, axis, parts in zip(task.outputs, cut.outputs, parts_out)
            if axis is not None and axis != SUMMED
        )
        for index, (size, stop) in enumerate(zip(self.sizes, self.stops)):
            names = {name: parts[index] for name, parts in zip(reads, parts_in)}
            for name, axis, parts in zip(task.outputs, cut.outputs, parts_out):
                storage = self.storage(self.graph.value[name], parts[index], names)
                self.put(self.graph.value[name], parts, index, axis, storage)
            args = task.args
            for path in cut.scale:
                args = _scaled(args, path, size, self.total)
            self.tasks.append(
                replace(
                    replace(task, args=args).reading(names),
                    name=f"{task.name}#{index}",
                    outputs=tuple(parts[index] for parts in parts_out),
                    after=self.after(task, index),
                    flops=task.flops * stop // self.total - task.flops * (stop - size) // self.total,
                    cuts=(),
                    origin=task.origin or task.name,
                    part=f"{self.noun} {stop - size}–{stop - 1}",
                )
            )
        for name, axis, parts in zip(task.outputs, cut.outputs, parts_out):
            if axis == SUMMED and (self.graph.readers[name] or name in self.results):
                self.values[name] = replace(self.graph.value[name], storage=name)
                self.add(name, f"{name}#sum", SUM, (tuple(map(Ref, parts)),), name, free=False)

    def names(self, name: str, axis: int | None) -> tuple[str, ...]:
        """Return names of the parts of a value; if each part has its own, the first stands for the whole."""
        parts = [f"{name}#{index}" for index in range(len(self.sizes))]
        return (name, *parts[1:]) if axis == OWN else tuple(parts)

    def put(self, value: Value, names: Sequence[str], index: int, axis: int | None, storage: str) -> None:
        """Add part `index` of a value, with its rows of the batch on `axis`."""
        name, size = names[index], self.sizes[index]
        shape, nbytes = value.shape, value.bytes
        if axis is not None and axis >= 0:
            shape = (*shape[:axis], shape[axis] // self.total * size, *shape[axis + 1 :])
            nbytes = nbytes // self.total * size
        part = (value.name, index)
        self.values[name] = Value(name, shape, value.dtype, nbytes, storage, part=part, label=value.label)

    def storage(self, value: Value, name: str, names: dict[str, str]) -> str:
        """Return the storage of a new output: that of the input whose memory it shared, or its own."""
        if value.storage != value.name:
            for before, now in names.items():
                if self.graph.value[before].storage == value.storage:
                    return self.values[now].storage
        return name

    def any(self, name: str) -> str:
        """Return the value, or one of its parts if there is no whole."""
        parts = self.parts.get((name, self.axis.get(name, 0)))
        return parts[0] if parts and name not in self.values else self.whole(name)

    def whole(self, name: str) -> str:
        """Return the whole value, joined on first use."""
        if name not in self.values:
            axis, value = self.axis[name], self.graph.value[name]
            parts, outer = self.parts[name, axis], self.outer.get(name, 1)
            if outer == 1:
                self.values[name] = replace(value, storage=name)
                self.add(name, f"{name}#join", JOIN, _joined(parts, axis, value.order), name, free=False)
            else:
                self.join_blocks(value, axis, outer, parts)
        return name

    def join_blocks(self, value: Value, axis: int, outer: int, parts: tuple[str, ...]) -> None:
        """Join rows in `outer` blocks of one axis: separate the axes, join, and merge them again."""
        joined = f"{value.name}#blocks"
        for part in parts:
            shape = _with_blocks(self.values[part].shape, axis, outer)
            blocks = f"{part}#blocks"
            self.values[blocks] = replace(self.values[part], name=blocks, shape=shape)
            self.add(blocks, blocks, _RESHAPE, (Ref(part), shape), value.name, free=True)
        order = _order_with_blocks(value.order, axis)
        self.values[joined] = replace(
            value, name=joined, shape=_with_blocks(value.shape, axis, outer), storage=joined, order=order
        )
        args = _joined([f"{part}#blocks" for part in parts], axis + 1, order)
        self.add(joined, f"{value.name}#join", JOIN, args, value.name, free=False)
        self.values[value.name] = replace(value, storage=joined)
        self.add(
            value.name, f"{value.name}#merge", _RESHAPE, (Ref(joined), value.shape), value.name, free=True
        )

    def split(self, name: str, axis: int) -> tuple[str, ...]:
        """Return the parts of a value along an axis, sliced from the whole on first use."""
        if axis == OWN:
            return self.parts.get((name, axis)) or (self.whole(name),) * len(self.sizes)
        if (name, axis) not in self.parts:
            self.whole(name)
            value = self.graph.value[name]
            label = name if axis == self.axis.get(name) else f"{name}#axis{axis}"
            names = tuple(f"{label}#{index}" for index in range(len(self.sizes)))
            for index, (size, stop) in enumerate(zip(self.sizes, self.stops)):
                self.put(value, names, index, axis, self.values[name].storage)
                args = (Ref(name), axis, stop - size, stop, self.total)
                self.add(names[index], f"{label}#part{index}", PART, args, name, free=True)
            self.parts[name, axis] = names
        return self.parts[name, axis]

    def add(
        self, output: str, task: str, target: str, args: tuple[Argument, ...], value: str, *, free: bool
    ) -> None:
        """Append an inserted task, at the source location of the value's producer, in its reader's phase."""
        producer = self.graph.producer.get(value)
        where = self.graph.task[producer] if producer else Task("", "")
        added = Task(task, target, args, outputs=(output,), free=free, phase=self.phase)
        self.tasks.append(replace(added, module=where.module, source=where.source, label=where.label))

    def after(self, task: Task, part: int | None = None) -> tuple[str, ...]:
        """Return the tasks to follow, by the names of their parts: a part follows the same part.

        Parts are independent, since split tasks draw no random numbers in program order.
        """
        parts = range(len(self.sizes)) if part is None else (part,)
        return tuple(
            name
            for earlier in task.after
            for name in ([f"{earlier}#{index}" for index in parts] if earlier in self.cuts else [earlier])
        )


_RESHAPE = "aten.reshape.default"


def _with_blocks(shape: tuple[int, ...], axis: int, outer: int) -> tuple[int, ...]:
    return (*shape[:axis], outer, shape[axis] // outer, *shape[axis + 1 :])


def _order_with_blocks(order: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return `Value.order` of a value with two axes in place of one."""
    pairs = ((place, place + 1) if place == axis else (place + (place > axis),) for place in order)
    return tuple(chain.from_iterable(pairs))


def _joined(parts: Sequence[str], axis: int, order: tuple[int, ...]) -> tuple[Argument, ...]:
    """Return the arguments of a JOIN."""
    refs = tuple(map(Ref, parts))
    return (refs, axis, order) if order else (refs, axis)


def _scaled(args: tuple[Argument, ...], path: tuple[int, ...], rows: int, batch: int) -> tuple[Argument, ...]:
    """Scale the integer at `path` in the arguments from the batch to `rows` rows."""
    step, *rest = path
    old = args[step]
    new: Argument
    if rest:
        assert isinstance(old, tuple)
        new = _scaled(old, tuple(rest), rows, batch)
    else:
        assert isinstance(old, int)
        new = old // batch * rows
    return (*args[:step], new, *args[step + 1 :])


def rows_of(label: str) -> tuple[int, ...]:
    """Return the rows of each part in a split label: `2 parts: 50 + 50` is (50, 50)."""
    try:
        return tuple(int(rows) for rows in label.partition(":")[2].split("+"))
    except ValueError:
        raise PlanError(f"{label!r} is not a split; it reads like '2 parts: 50 + 50'") from None
