"""Accounting of memory under caps while a program is written.

Every byte is given back by the lane that allocated it, so what a lane holds depends only on how far it has
come. Take the allocations in the order they are written. Of the buffers alive at any moment, the one written
last was allowed for knowing all others as alive, because none of them is freed for sure before it. So where
`bound` held at each allocation, no order the lanes may run in breaks the cap.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from .vector_clocks import Clock


@dataclass(slots=True)
class _Point:
    """An allocation: bytes its lane holds while it runs, and the most each other lane may hold meanwhile."""

    position: int
    during: int
    others: list[int]


class Ledger:
    """Bytes of one device under a cap: `base` always there, the rest by lane and position.

    `strict` keeps every allocation's bound up to date with what is written after it, so that `footprint`,
    which does not know the order of writing, finds the same bounds.
    """

    def __init__(self, device: str, cap: int, base: int, lanes: int, strict: bool):
        self.device, self.cap, self.base, self.strict = device, cap, base, strict
        self.levels: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        # For each lane the allocations that no later one of the lane tops: the first of them from a position
        # on is the most the lane holds from there on.
        self.tops: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        self.points: list[list[_Point]] = [[] for _ in range(lanes)]

    @property
    def allocators(self) -> int:
        """Number of lanes that allocate."""
        return sum(1 for levels in self.levels if levels)

    def level(self, lane: int) -> int:
        """Bytes a lane holds after all its steps so far."""
        return self.levels[lane][-1][1] if self.levels[lane] else 0

    def alive(self) -> int:
        """Bytes held when every lane has done all its steps so far."""
        return self.base + sum(levels[-1][1] for levels in self.levels if levels)

    def allocate(self, lane: int, position: int, nbytes: int, scratch: int, clock: Clock) -> None:
        """The step at `position` allocates `nbytes` to stay and `scratch` while it runs."""
        level = self.level(lane) + nbytes
        during = level + scratch
        if self.strict:
            for _, point in self._open(lane, clock):
                point.others[lane] = max(point.others[lane], during)
            others = [0 if other == lane else self._most(other, known) for other, known in enumerate(clock)]
            self.points[lane].append(_Point(position, during, others))
        tops = self.tops[lane]
        while tops and tops[-1][1] <= during:
            tops.pop()
        tops.append((position, during))
        self.levels[lane].append((position, level))

    def release(self, lane: int, position: int, nbytes: int) -> None:
        """The step at `position` gives `nbytes` back."""
        self.levels[lane].append((position, self.level(lane) - nbytes))

    def bound(self, lane: int, clock: Clock) -> int:
        """The most the device may hold before the next step of `lane`, whose clock is `clock`."""
        others = sum(self._most(other, known) for other, known in enumerate(clock) if other != lane)
        return self.base + self.level(lane) + others

    def behind(self, lane: int, clock: Clock, short: int) -> tuple[int, int]:
        """The lane and position that following saves most, or the least that is enough where one alone is."""
        best: tuple[bool, int, int, int] | None = None
        for other, levels in enumerate(self.levels):
            if other != lane and levels:
                saved = self._most(other, clock[other]) - levels[-1][1]
                enough = saved >= short
                rank = (enough, -saved if enough else saved, -other, levels[-1][0])
                if saved > 0 and (best is None or rank > best):
                    best = rank
        assert best is not None
        return -best[2], best[3]

    def crossed(self, lane: int, clock: Clock, nbytes: int) -> dict[int, int]:
        """Position of the last allocation of each other lane beside which the cap has no room for `nbytes` more in
        `lane`."""
        during = self.level(lane) + nbytes
        return {
            other: point.position
            for other, point in self._open(lane, clock)
            if self.base + point.during + sum(point.others) + max(0, during - point.others[lane]) > self.cap
        }

    def _open(self, lane: int, clock: Clock) -> list[tuple[int, _Point]]:
        """Allocations of other lanes not known to be over, in order of lane and position."""
        found = []
        for other, points in enumerate(self.points):
            if other != lane:
                first = bisect_left(points, clock[other], key=lambda point: point.position)
                found += [(other, point) for point in points[first:]]
        return found

    def _most(self, lane: int, known: int) -> int:
        """The most a lane may hold when `known` of its steps are known to be over."""
        levels, tops = self.levels[lane], self.tops[lane]
        index = bisect_left(levels, (known,)) - 1
        first = bisect_left(tops, (known,))
        return max(levels[index][1] if index >= 0 else 0, tops[first][1] if first < len(tops) else 0)
