"""Arguments and values that depend on the sizes and floats of a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from .graph import Graph, Value


class OpenSize(int):
    """An integer argument of a task, with its value in the call that was captured. In a call with other sizes, it is
    the one at `place` among these."""

    place: int

    def __new__(cls, value: int, place: int) -> OpenSize:
        """Return the number `value`, which is at `place` among the sizes of a call."""
        size = super().__new__(cls, value)
        size.place = place
        return size

    def at(self, sizes: Sequence[float]) -> int:
        """Return the number in a call with these sizes."""
        return int(sizes[self.place])

    @property
    def code(self) -> str:
        """Its Python expression, with the sizes of the call as `n`."""
        return f"n[{self.place}]"

    def __repr__(self) -> str:
        # Equal numbers at different places are different arguments.
        return f"OpenSize({int(self)}, {self.place})"

    __str__ = int.__repr__

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.place


class _OpenFloat(float):
    """A float argument of a task, with its value in the call that was captured. In another call, it is the one at
    `place` among the sizes of the call, which include its floats."""

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
