"""Runs laid down one after the other by the room there is, for graphs that hardly fit: times play no part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.problem import Problem
from ..model.simulator import Schedule
from .memory_first import Room


class Laid:
    """Runs so far, each on the first queue of its device; `room` of each cap may be filled.

    `there[v]` has the devices on which value v is.
    """

    def __init__(self, problem: Problem, room: float = 1.0) -> None:
        self.problem = problem
        self.space = Room(problem, room)
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
        self._queues: list[list[str]] = [[] for _ in problem.devices]
        self._chosen: dict[int, int] = {}

    def able(self, r: int) -> Sequence[int]:
        """The devices that have room for a run; when none has, the one that is over by least."""
        group = self.problem.group[r]
        allowed = (self._chosen[group],) if group in self._chosen else self.problem.allowed[r]
        return self.space.fitting(r, allowed, self.there)

    def roomiest(self, devices: Iterable[int]) -> int:
        """The first of the devices with most room left."""
        return max(devices, key=lambda d: (self.space.caps[d] - self.space.used[d], -d))

    def lay(self, r: int, d: int) -> None:
        """Put a run on a device, and copies of what it reads."""
        problem = self.problem
        if problem.group[r] >= 0:
            self._chosen[problem.group[r]] = d
        for v in problem.reads[r]:
            if d not in self.there[v]:
                self.there[v][d] = 0.0
                self.space.copy(v, d)
        self.space.settle(r, d, self.there)
        for v in problem.makes[r]:
            self.there[v][d] = 0.0
        self._queues[d].append(problem.names[r])

    def schedule(self, policy: str) -> Schedule:
        """Each device's runs in the order in which they were laid."""
        queues = zip(self.problem.lane_names, self._queues)
        return Schedule(policy, {lanes[0]: tuple(names) for lanes, names in queues})
