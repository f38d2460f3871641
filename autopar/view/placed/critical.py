"""The critical path as one unbroken line over a placed graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from ...ir.critical_path import Critical
from ...ir.steps import Placed, Step, Transfer
from ..drawing.free_space import Point
from .columns import Column

_TIGHT = 12.0
"""Copies that follow one another in fewer pixels are one line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the line through `points`; `kind` is `cluster`, `copy` (its end is an arrow) or `bus`,
    drawn dotted."""

    kind: str
    points: tuple[Point, ...]


def edges(columns: dict[str, Column], src: str, dst: str) -> tuple[float, float]:
    """Where a transfer leaves the column of `src` and where it reaches that of `dst`."""
    one, other = columns[src], columns[dst]
    return (one.right, other.x) if one.x < other.x else (one.x, other.right)


def critical_line(
    found: Critical, columns: dict[str, Column], y: Callable[[float], float], second: float
) -> list[Piece]:
    """The pieces of the critical path in order; `y` is where a moment is, `second` pixels per second."""
    lanes = {lane: (x, x + w) for column in columns.values() for lane, x, w in column.lanes}
    stretches = _stretches(found, _TIGHT / second if second else 0.0)
    pieces: list[Piece] = []
    here: Point | None = None
    here_device = ""
    for position, (first, last) in enumerate(stretches):
        start, end = y(first.start), y(last.end)
        if isinstance(first, Transfer):
            leave, reach = edges(columns, first.src, first.dst)
            if here and here_device == first.src:
                pieces.append(Piece("run", _path(here, (leave, here[1]), (leave, start))))
            elif here:
                pieces.append(Piece("bus", _path(here, (here[0], start), (leave, start))))
            pieces.append(Piece("copy", ((leave, start), (reach, end))))
            here, here_device = (reach, end), first.dst
            continue
        left, right = lanes[first.lane]
        after = stretches[position + 1][0] if position + 1 < len(stretches) else None
        if here:
            goal = here[0]
        elif isinstance(after, Transfer):
            goal = edges(columns, after.src, after.dst)[0]
        else:
            goal = right
        side = left if abs(goal - left) < abs(goal - right) else right
        if here:
            kind = "run" if here_device == first.device else "bus"
            pieces.append(Piece(kind, _path(here, (side, here[1]), (side, start))))
        pieces.append(Piece("run", ((side, start), (side, end))))
        here, here_device = (side, end), first.device
    return _joined(pieces)


def _stretches(found: Critical, tight: float) -> list[tuple[Step, Step]]:
    """First and last step of each stretch: clusters of one lane, or copies of one direction less than `tight` seconds
    each."""
    done: list[tuple[Step, Step]] = []
    for step in map(found.steps.__getitem__, found.path):
        if done and _continues(done[-1][1], step, tight):
            done[-1] = (done[-1][0], step)
        else:
            done.append((step, step))
    return done


def _continues(before: Step, step: Step, tight: float) -> bool:
    if isinstance(before, Placed) or isinstance(step, Placed):
        return before.lane == step.lane
    same_way = (step.src, step.dst) == (before.src, before.dst)
    return same_way and max(step.start, before.end) - before.start < tight


def _path(*points: Point) -> tuple[Point, ...]:
    return tuple(point for point, _ in groupby(points))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring `cluster` pieces as one line, so that corners meet; pieces of one point dropped."""
    done: list[Piece] = []
    for piece in pieces:
        if len(piece.points) < 2:
            continue
        if done and piece.kind == done[-1].kind == "run" and done[-1].points[-1] == piece.points[0]:
            done[-1] = Piece("run", _path(*done[-1].points, *piece.points[1:]))
        else:
            done.append(piece)
    return done
