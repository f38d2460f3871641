"""Room left on each device while runs are being placed, by the order in which they are placed.

What is alive when is known only once there are times. Until then a value counts from the placing of its run,
or of the first reader a copy is made for, to the placing of its last reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..model.problem import Problem


class Room:
    """Bytes in use on each device; `share` of each cap may be filled."""

    def __init__(self, problem: Problem, share: float) -> None:
        self.problem = problem
        self.caps = [math.inf if cap is None else cap * share for cap in problem.caps]
        self.used = [sum(storages.values()) for storages in problem.given]
        self.kept = [set(storages) for storages in problem.given]
        stay = not problem.costed.consumed
        self.left = [
            math.inf
            if (problem.deliver[v] and stay) or problem.carry[v] or problem.stays[v]
            else len(readers)
            for v, readers in enumerate(problem.readers)
        ]

    def need(self, r: int, d: int, there: Sequence[dict[int, float]]) -> int:
        """Bytes a run would add to a device while it runs."""
        problem = self.problem
        state = sum(nbytes for storage, nbytes in problem.kept[r] if storage not in self.kept[d])
        reads = sum(problem.bytes[v] for v in problem.reads[r] if d not in there[v])
        return state + reads + sum(problem.bytes[v] for v in problem.makes[r]) + problem.workspace[r]

    def fitting(self, r: int, allowed: Sequence[int], there: Sequence[dict[int, float]]) -> Sequence[int]:
        """The devices that have room for a run; when none has, the one that is over by least."""
        over = [self.used[d] + self.need(r, d, there) - self.caps[d] for d in allowed]
        fits = [d for d, excess in zip(allowed, over) if excess <= 0]
        return fits or (allowed[over.index(min(over))],)

    def copy(self, v: int, d: int) -> None:
        """A copy of a value comes to a device."""
        self.used[d] += self.problem.bytes[v]

    def settle(self, r: int, d: int, there: Sequence[dict[int, float]]) -> None:
        """Take the room of a run placed on `d`, and give back the values it was the last to read."""
        problem = self.problem
        for storage, nbytes in problem.kept[r]:
            if storage not in self.kept[d]:
                self.kept[d].add(storage)
                self.used[d] += nbytes
        for v in problem.makes[r]:
            self.used[d] += problem.bytes[v]
        for v in problem.reads[r]:
            self.left[v] -= 1
            if not self.left[v]:
                for holder in there[v]:
                    if holder != problem.home[v]:
                        self.used[holder] -= problem.bytes[v]
