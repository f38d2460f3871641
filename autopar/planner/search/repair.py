"""Search for anything that fits, where nothing that was tried does."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from ..candidates import Entry, Race
from ..model.orders import in_order

TRIES = 500
"""Schedules simulated with their memory from each start, at most."""
EACH = 30
"""Steps that a run takes in each of them."""
FEWEST = 100
"""Schedules below which it is not worth beginning."""
MOVED, FULL = 0.6, 0.7
"""How often a change is one of lane and not of order, and how often it is a run of a device that is too full."""
STARTS = 3
"""Schedules that are least too large and begun from."""


def squeeze(race: Race, steps: int, until: float = math.inf) -> bool:
    """Enter a schedule that fits, from those of `race` that are least too large, and say whether one was found.

    Hill climbing on the bytes above the caps: runs go to other devices, together with those bound to them, or to other
    places of the order. About `steps` runs are placed, or until `until` of the monotonic clock; nothing is done for a
    graph so large that only a few schedules could be tried, nor for one with runs that may take several lanes.
    Deterministic.
    """
    problem = race.problem
    tries = min(TRIES, steps // (STARTS * EACH * max(1, problem.runs)))
    if problem.modes or tries < FEWEST:
        return False
    draw = random.Random(0)
    for start in sorted(race.entries, key=lambda entry: entry.excess)[:STARTS]:
        climb = _Climb(race, draw, start)
        for _ in range(tries):
            if not climb.entry.over or time.monotonic() > until:
                break
            climb.step()
        if not climb.entry.over:
            race.admit(climb.entry)
            return True
    return False


class _Climb:
    """The schedule at hand: the (device, lane of it) of each run, and the `keys` in whose order a lane takes them."""

    def __init__(self, race: Race, draw: random.Random, entry: Entry) -> None:
        self.race, self.problem, self.draw, self.entry = race, race.problem, draw, entry
        play, problem = entry.play, race.problem
        self.place = [(d, problem.lane_names[d].index(lane)) for d, lane in zip(play.device, play.lane)]
        order = sorted(range(problem.runs), key=play.when)
        self.keys = [0.0] * problem.runs
        for at, r in enumerate(order):
            self.keys[r] = float(at)

    def step(self) -> None:
        """Change something, and keep it unless that takes more."""
        place, keys, draw = [*self.place], [*self.keys], self.draw
        for _ in range(1 + int(draw.random() * 2)):
            if draw.random() < MOVED:
                self._moved(place)
            else:
                self._turned(keys)
        order = sorted(range(self.problem.runs), key=keys.__getitem__)
        runs = ((r, place[r][0], (place[r][1],)) for r in order)
        entry = self.race.trial(in_order(self.problem, "squeezed", runs))
        if entry and entry.excess <= self.entry.excess:
            self.entry, self.place, self.keys = entry, place, keys

    def _moved(self, place: list[tuple[int, int]]) -> None:
        """Take a run, rather one of a device that is too full, to another lane, with those bound to it."""
        problem = self.problem
        full = {problem.devices.index(name) for name, _, _ in self.entry.over}
        there = [r for r, (d, _) in enumerate(place) if d in full]
        r = self._one(there if there and self.draw.random() < FULL else range(problem.runs))
        d = self._one(problem.allowed[r])
        for member in problem.members[problem.group[r]] if problem.group[r] >= 0 else (r,):
            place[member] = d, self._one(range(len(problem.lane_names[d])))

    def _turned(self, keys: list[float]) -> None:
        """Let a run come at another time between what comes before it and what comes after it."""
        problem = self.problem
        r = self._one(range(problem.runs))
        low = max((keys[before] for before in problem.before[r]), default=-1.0)
        high = min((keys[after] for after in problem.after[r]), default=float(problem.runs))
        keys[r] = low + (high - low) * self.draw.random()

    def _one(self, of: Sequence[int]) -> int:
        return of[int(self.draw.random() * len(of))]
