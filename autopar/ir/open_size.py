"""Arguments and values that depend on the sizes and floats of a call."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from .graph import Graph, Value


class OpenSize(int):
    """An integer argument of a task, with its value in the call for which the graph was made. In a call with
    other sizes, it is the one at `place`, or its `share`: (rows of a part, rows of the batch)."""

    place: int
    share: tuple[int, int]

    def __new__(cls, value: int, place: int, share: tuple[int, int] = (1, 1)) -> OpenSize:
        """Return the number `value`, which is at `place` among the sizes of a call, or its share."""
        size = super().__new__(cls, value)
        size.place, size.share = place, share
        return size

    def of_part(self, rows: int, batch: int) -> OpenSize:
        """Return the number for a part with `rows` rows of the batch."""
        assert self.share == (1, 1), "a graph is split once"
        return OpenSize(self // batch * rows, self.place, (rows, batch))

    def at(self, sizes: Sequence[float]) -> int:
        """Return the number in a call with these sizes."""
        rows, batch = self.share
        return int(sizes[self.place]) // batch * rows

    @property
    def code(self) -> str:
        """Its Python expression, with the sizes of the call as `n`."""
        number, (rows, batch) = f"n[{self.place}]", self.share
        return number if rows == batch else f"{number} // {batch} * {rows}"

    def __repr__(self) -> str:
        # Equal numbers at different places are different arguments.
        return f"OpenSize({int(self)}, {self.place}, {self.share})"

    __str__ = int.__repr__

    def __getnewargs__(self) -> tuple[int, int, tuple[int, int]]:  # type: ignore[override]
        return int(self), self.place, self.share


class _OpenFloat(float):
    """A float argument of a task, with its value in the call for which the graph was made. In another call, it is the
    one at `place` among the sizes of the call, which include its floats."""

    place: int

    def __new__(cls, value: float, place: int) -> _OpenFloat:
        """Return the number `value`, which is at `place` among the sizes of a call."""
        number = super().__new__(cls, value)
        number.place = place
        return number

    def at(self, sizes: Sequence[float]) -> float:
        """Return the number in a call with these sizes and floats."""
        return float(sizes[self.place])

    @property
    def code(self) -> str:
        """Its Python expression, with the sizes of the call as `n`."""
        return f"n[{self.place}]"

    def __repr__(self) -> str:
        return f"OpenFloat({float(self)}, {self.place})"

    __str__ = float.__repr__

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]
        return float(self), self.place


Opened: TypeAlias = OpenSize | _OpenFloat
"""An argument that depends on the sizes and floats of a call."""
OPENED = (OpenSize, _OpenFloat)


def opened(number: float, place: int) -> Opened:
    """Return a number as the argument that is at `place` among the sizes and floats of a call."""
    return OpenSize(number, place) if isinstance(number, int) else _OpenFloat(number, place)


def extents(value: Value) -> tuple[int, ...]:
    """Return the shape of a value as an argument; extents known to depend on a call's sizes are
    `OpenSize`."""
    return value.open[:-1] if value.open[:-1] == value.shape else value.shape


def of_part(value: Value, axis: int, rows: int, batch: int) -> tuple[int, ...]:
    """Return `Value.open` of the part of a value with `rows` rows of the batch on `axis`."""

    def share(size: int) -> int:
        return size.of_part(rows, batch) if isinstance(size, OpenSize) else size // batch * rows

    return tuple(
        share(size) if place in (axis, len(value.shape)) else size for place, size in enumerate(value.open)
    )


def resized(graph: Graph, sizes: Sequence[float]) -> Graph | None:
    """Return the graph with the shapes and bytes of its values in a call with other sizes (its arguments stay); None if
    they are not known of each value."""
    values: list[Value] = []
    for value in graph.values:
        if not any(isinstance(size, OpenSize) for size in value.open):
            if not value.open and value.bytes and value.kind != "state":
                return None
            values.append(value)
            continue
        if not value.open[-1] or value.kind == "state":
            return None
        shape = tuple(size.at(sizes) if isinstance(size, OpenSize) else size for size in value.open[:-1])
        nbytes = value.bytes // value.open[-1] * math.prod(shape)
        values.append(replace(value, shape=shape, bytes=nbytes))
    return replace(graph, values=tuple(values))


class _Fixed(int):
    """A number of elements that does not depend on the sizes of a call."""


def count(value: Value, axes: Collection[int] | None = None) -> int:
    """Return the number of elements of a value along axes (default: all) as an argument, also for calls of
    other sizes if known."""
    sizes, axes = extents(value), range(len(value.shape)) if axes is None else axes
    total = math.prod(value.shape[axis] for axis in axes)
    if not value.open or sizes is value.shape:
        return total
    if any(isinstance(size, OpenSize) and size.share != (1, 1) for size in sizes):
        return total
    opened = [size for axis in axes if isinstance(size := sizes[axis], OpenSize)]
    rest = [size for axis, size in enumerate(sizes) if axis not in axes]
    if not opened:
        return _Fixed(total)
    if len(opened) == 1:
        return OpenSize(total, opened[0].place, (total // opened[0], 1))
    if any(isinstance(size, OpenSize) for size in rest):
        return total
    whole = value.open[-1]
    return OpenSize(total, whole.place, (1, math.prod(rest))) if isinstance(whole, OpenSize) else total
