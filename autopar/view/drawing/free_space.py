"""Free space for labels: occupied rectangles and lines, and tests against them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from . import design
from .design import INK

Point: TypeAlias = tuple[float, float]
_Cell: TypeAlias = tuple[int, int]
T = TypeVar("T")

_CELL = 64.0


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its top left corner, in pixels."""

    x: float
    y: float
    w: float
    h: float

    def grown(self, pad: float) -> Rect:
        """Return the rectangle enlarged by `pad` pixels on every side."""
        return Rect(self.x - pad, self.y - pad, self.w + 2 * pad, self.h + 2 * pad)

    def meets(self, other: Rect) -> bool:
        """Return True if the two overlap."""
        across = self.x < other.x + other.w and other.x < self.x + self.w
        return across and self.y < other.y + other.h and other.y < self.y + self.h

    def crosses(self, start: Point, end: Point) -> bool:
        """Return True if a line from `start` to `end` passes through it, by Liang-Barsky clipping (1984)."""
        low, high = 0.0, 1.0
        for origin, step, least, most in (
            (start[0], end[0] - start[0], self.x, self.x + self.w),
            (start[1], end[1] - start[1], self.y, self.y + self.h),
        ):
            if not step:
                if not least < origin < most:
                    return False
                continue
            near, far = sorted(((least - origin) / step, (most - origin) / step))
            low, high = max(low, near), min(high, far)
            if low >= high:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text with its baseline at `y`, measured by the font's own widths."""

    x: float
    y: float
    text: str
    size: float = 12
    color: str = INK
    bold: bool = False
    anchor: str = "start"
    ground: str = ""
    """Colour behind the text, over any lines."""

    @property
    def rect(self) -> Rect:
        """Bounding box, from the top of capitals to below the baseline."""
        w = design.width(self.text, self.size, self.bold)
        x = self.x - (w if self.anchor == "end" else w / 2 if self.anchor == "middle" else 0)
        return Rect(x, self.y - self.size * 0.8, w, self.size)


class FreeSpace:
    """Occupied rectangles and lines, in a grid of cells so that a query only visits those nearby."""

    def __init__(self) -> None:
        self._rects: dict[_Cell, list[Rect]] = defaultdict(list)
        self._lines: dict[_Cell, list[tuple[Point, Point]]] = defaultdict(list)

    def take(self, rect: Rect) -> None:
        """Mark a rectangle as occupied."""
        for cell in _cells(rect):
            self._rects[cell].append(rect)

    def take_line(self, start: Point, end: Point) -> None:
        """Mark a line as occupied."""
        (x1, y1), (x2, y2) = start, end
        for cell in _cells(Rect(min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1))):
            self._lines[cell].append((start, end))

    def free(self, rect: Rect) -> bool:
        """Return True if nothing occupied overlaps it."""
        return self.unlined(rect) and not any(rect.meets(other) for other in _near(self._rects, rect))

    def unlined(self, rect: Rect) -> bool:
        """Return True if no line passes through it."""
        return not any(rect.crosses(*line) for line in _near(self._lines, rect))

    def first(self, places: Iterable[Sequence[Label]], *, pad: float) -> Sequence[Label]:
        """Return the first set of labels that is free by `pad` pixels and has no empty one, and occupy its place."""
        for labels in places:
            if labels and all(label.text and self.free(label.rect.grown(pad)) for label in labels):
                for label in labels:
                    self.take(label.rect)
                return labels
        return ()


def _near(grid: dict[_Cell, list[T]], rect: Rect) -> Iterator[T]:
    return (item for cell in _cells(rect) for item in grid.get(cell, ()))


def _cells(rect: Rect) -> Iterator[_Cell]:
    for column in range(int(rect.x // _CELL), int((rect.x + rect.w) // _CELL) + 1):
        for row in range(int(rect.y // _CELL), int((rect.y + rect.h) // _CELL) + 1):
            yield column, row
