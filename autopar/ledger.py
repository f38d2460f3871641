"""What a capped device may hold while a program is being written.

Memory is counted by lane: every byte is given back by the lane that allocated it, so what a lane holds depends only on
how far it has come. Let the allocations be in the order they are written. Of the buffers alive at any moment, the one
written last was allowed for knowing every other as alive, because none of them is freed for sure before it. So if
`bound` held at each allocation, no order the lanes may run in breaks the cap.
"""

from __future__ import annotations

from bisect import bisect_left

from .clocks import Clock


class Ledger:
    """Bytes of one device: `base` always there, the rest by lane and position."""

    def __init__(self, device: str, cap: int, base: int, lanes: int):
        self.device, self.cap, self.base = device, cap, base
        self.levels: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        # For each lane the allocations that no later one of the lane tops: the first of them from a position on is
        # the most the lane holds from there on.
        self.tops: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        self.last: list[int | None] = [None] * lanes

    def level(self, lane: int) -> int:
        """Bytes a lane holds after all its steps so far."""
        return self.levels[lane][-1][1] if self.levels[lane] else 0

    def allocate(self, lane: int, position: int, nbytes: int, scratch: int) -> None:
        """The step at `position` allocates `nbytes` to stay and `scratch` while it runs."""
        level = self.level(lane) + nbytes
        tops = self.tops[lane]
        while tops and tops[-1][1] <= level + scratch:
            tops.pop()
        tops.append((position, level + scratch))
        self.levels[lane].append((position, level))
        self.last[lane] = position

    def release(self, lane: int, position: int, nbytes: int) -> None:
        """The step at `position` gives `nbytes` back."""
        self.levels[lane].append((position, self.level(lane) - nbytes))

    def most(self, lane: int, known: int) -> int:
        """The most a lane may hold when `known` of its steps are known to be over."""
        levels, tops = self.levels[lane], self.tops[lane]
        index = bisect_left(levels, (known,)) - 1
        first = bisect_left(tops, (known,))
        return max(levels[index][1] if index >= 0 else 0, tops[first][1] if first < len(tops) else 0)

    def bound(self, lane: int, clock: Clock) -> int:
        """The most the device may hold before the next step of `lane`, whose clock is `clock`."""
        others = sum(
            self.most(other, clock[other])
            for other in range(len(clock))
            if other != lane and self.levels[other]
        )
        return self.base + self.level(lane) + others

    def behind(self, lane: int, clock: Clock, short: int) -> tuple[int, int] | None:
        """The other lane, and its position, that following saves most, the least that is enough if any is."""
        best: tuple[bool, int, int, int] | None = None
        for other, levels in enumerate(self.levels):
            if other != lane and levels:
                saved = self.most(other, clock[other]) - levels[-1][1]
                enough = saved >= short
                rank = (enough, -saved if enough else saved, -other, levels[-1][0])
                if saved > 0 and (best is None or rank > best):
                    best = rank
        return None if best is None else (-best[2], best[3])

    def last_allocations(self, lane: int) -> dict[int, int]:
        """Where each other lane last allocated."""
        return {other: last for other, last in enumerate(self.last) if other != lane and last is not None}
