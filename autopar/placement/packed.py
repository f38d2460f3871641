"""Search among placements that fit, for graphs whose best schedules do not: annealing, decoded in batches."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import numpy as np

from ..problem import Problem
from ..simulate import Schedule
from .batch import Candidates, Decoded, schedule
from .parts import parts
from .priorities import places
from .race import SHORTER, Entry, Race
from .rank import urgent_first
from .served import carried_out
from .tables import Floats, Ints, Tables

EACH = 7_000
"""Runs placed for each run of a graph, at most."""
FEWEST = 4
"""Rounds below which it is not worth beginning."""
CHAINS = 8
CHILDREN = 16
"""Placements tried of each chain in a round."""
STARTS = 4
"""Different placements that chains begin with, at most."""
LOOKS = 10
"""Nodes and edges that the search for starts looks at, for each run that is placed."""
TRIAL = 16
"""Placements whose decoding takes as long as one simulation with its memory."""
TURNED_DOWN = 8
"""Times as many moves that do not fit as are tried in a round, after which the round is left as it is."""
HEAT = 0.02
"""Share by which a chain may become worse at first."""
REORDER = 0.3
"""How often a chain takes over the order in which its new schedule starts its runs."""
TAKE_OVER = 15
"""Rounds between the best chains' taking over the worst."""
CLOSE = 1e-6
"""Share above the lower bound at which the search ends."""


def pack(race: Race, bound: float, steps: int, until: float = math.inf) -> None:
    """Enter the best schedule found among placements that fit, from those of `race` and from `parts`.

    Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of placements: a run, all before or after
    it on its device, a stretch of the order, or two of these swapped. State that would not fit is turned down unseen;
    what is accepted is simulated where what is made might not fit either. About `steps` runs are placed, fewer of a
    small graph, or until `until` of the monotonic clock; nothing is done for a graph so large that only a few
    placements could be tried, nor for one with runs that may take several lanes. Deterministic.
    """
    problem = race.problem
    steps = min(steps, EACH * problem.runs)
    rounds = steps // max(1, problem.runs * CHAINS * CHILDREN)
    if problem.modes or len(problem.devices) < 2 or rounds < FEWEST:
        return
    for placement in parts(problem, LOOKS * steps, until):
        entry = race.trial(_decoded(problem, placement))
        if entry and not entry.over:
            race.admit(entry)
            break
    fitting = sorted((entry for entry in race.entries if not entry.over), key=lambda entry: entry.makespan)
    starts: dict[tuple[int, ...], Entry] = {}
    for entry in fitting:
        starts.setdefault(tuple(entry.play.device), entry)
    if starts:
        _Packing(race, [*starts.values()][:STARTS]).search(rounds, bound, until)


def _decoded(problem: Problem, placement: Sequence[int]) -> Schedule:
    """The schedule of a placement, urgent runs first."""
    tables = Tables(problem)
    found = carried_out(tables, _candidates(np.array([urgent_first(problem)]), np.array([placement])))
    return schedule(tables, found, 0, "packed", copies=not tables.first_come)


def _candidates(order: Ints, fixed: Ints) -> Candidates:
    """Placements that leave nothing open."""
    none = np.zeros(len(order))
    return Candidates(order, fixed, none, none)


class _Packing:
    """The chains; `keys` are the places of runs in the order that they are decoded in."""

    def __init__(self, race: Race, starts: Sequence[Entry]) -> None:
        self.race, self.problem = race, race.problem
        self.tables = Tables(race.problem)
        self.draw = random.Random(0)
        self.state = State(race.problem)
        self.near = [[*dict.fromkeys((*a, *b))] for a, b in zip(self.problem.before, self.problem.after)]
        chosen = [starts[chain % len(starts)].play for chain in range(CHAINS)]
        self.device = np.array([play.device for play in chosen])
        self.keys = places(np.array([play.start[: self.problem.runs] for play in chosen]))
        found = carried_out(self.tables, _candidates(self.keys.argsort(axis=1), self.device))
        self.score = found.makespan
        self.best = starts[0]

    def search(self, rounds: int, bound: float, until: float) -> None:
        """Go on for about as many rounds, and enter the best if it is new."""
        first = self.best
        left, number = float(rounds), 0
        while left > 0 and self.best.makespan > bound * (1 + CLOSE) and time.monotonic() <= until:
            left -= 1 + self._round(left / rounds) * TRIAL / (CHAINS * CHILDREN)
            number += 1
            if number % TAKE_OVER == 0:
                ranked = np.argsort(self.score, kind="stable")
                better, worse = ranked[: CHAINS // 4], ranked[-(CHAINS // 4) :]
                for own in (self.keys, self.device, self.score):
                    own[worse] = own[better]
        if self.best is not first:
            self.race.admit(self.best)

    def _round(self, warmth: float) -> int:
        """Try children of all chains; how many were simulated."""
        children: list[Ints] = []
        chain: list[int] = []
        for own in range(CHAINS):
            order = np.argsort(self.keys[own], kind="stable").tolist()
            device = self.device[own].tolist()
            tries = 0.0
            while tries < CHILDREN:
                child = self._child(device, order)
                if child is not None and self.state.fits(child):
                    children.append(child)
                    chain.append(own)
                    tries += 1
                else:
                    tries += 1 / TURNED_DOWN
        if not children:
            return 0
        fixed, parent = np.array(children), np.array(chain)
        found = carried_out(
            self.tables, _candidates(np.argsort(self.keys[parent], axis=1, kind="stable"), fixed)
        )
        trials = 0
        for own in range(CHAINS):
            rows = np.flatnonzero(parent == own)
            if not len(rows):
                continue
            row = int(rows[found.makespan[rows].argmin()])
            makespan = float(found.makespan[row])
            if makespan > self.score[own] * (1 + HEAT * warmth**2 * self.draw.random() ** 2):
                continue
            shorter = makespan < self.best.makespan * (1 - SHORTER)
            if shorter or not self.state.surely(fixed[row]):
                trials += 1
                entry = self.race.trial(self._schedule(found, row))
                if entry is None or entry.over:
                    continue
                if entry.makespan < self.best.makespan * (1 - SHORTER):
                    self.best = entry
            self.device[own], self.score[own] = fixed[row], makespan
            if self.draw.random() < REORDER:
                self.keys[own] = places(found.start[row : row + 1])[0]
        return trials

    def _schedule(self, found: Decoded, row: int) -> Schedule:
        return schedule(self.tables, found, row, "packed", copies=not self.tables.first_come)

    def _child(self, device: list[int], order: list[int]) -> Ints | None:
        """A placement beside one, given with the order of its runs; None where nothing would move or it may not."""
        draw, problem = self.draw, self.problem
        place = int(draw.random() * problem.runs)
        r = order[place]
        if self.near[r] and draw.random() < 0.8:
            target = device[self.near[r][int(draw.random() * len(self.near[r]))]]
        else:
            target = int(draw.random() * len(problem.devices))
        own = device[r]
        if target == own:
            return None
        kind = draw.random()
        back: set[int] = set()
        if kind < 0.35:
            moved = {r}
        elif kind < 0.55:
            moved = self._side(r, device)
        elif kind < 0.8:
            moved = self._stretch(place, device, order)
        else:
            moved = {r}
            there = [other for other, d in enumerate(device) if d == target]
            if there:
                other = there[int(draw.random() * len(there))]
                back = {other} if kind < 0.9 else self._side(other, device)
        found = np.array(device)
        for runs, d in ((moved, target), (back, own)):
            for each in sorted(runs):
                together = problem.members[problem.group[each]] if problem.group[each] >= 0 else (each,)
                if d not in problem.allowed[each]:
                    return None
                for member in together:
                    found[member] = d
        return found

    def _side(self, r: int, device: list[int]) -> set[int]:
        """A run and all before it, or all after it, that are reached without leaving its device."""
        along = self.problem.before if self.draw.random() < 0.5 else self.problem.after
        found, border = {r}, [r]
        while border:
            for other in along[border.pop()]:
                if other not in found and device[other] == device[r]:
                    found.add(other)
                    border.append(other)
        return found

    def _stretch(self, place: int, device: list[int], order: list[int]) -> set[int]:
        """A run and a few of its device that are next to it in the order."""
        wide = 1 + int(8 * self.draw.random() ** 2)
        step = 1 if self.draw.random() < 0.5 else -1
        ahead = order[place::step][: 2 * wide]
        return set([other for other in ahead if device[other] == device[order[place]]][:wide])


class State:
    """Whether what runs keep fits; `spare` is as much as there can be beside it."""

    def __init__(self, problem: Problem) -> None:
        storages: dict[str, int] = {}
        held: list[tuple[int, int]] = []
        nbytes: list[int] = []
        for r, kept in enumerate(problem.kept):
            for storage, size in kept:
                if storage not in storages:
                    storages[storage] = len(nbytes)
                    nbytes.append(size)
                held.append((r, storages[storage]))
        self.run, self.storage = np.array(held, dtype=np.int64).reshape(-1, 2).T
        self.nbytes: Floats = np.tile(np.array(nbytes, dtype=np.float64)[:, None], len(problem.devices))
        for d, given in enumerate(problem.given):
            self.nbytes[[number for storage, number in storages.items() if storage in given], d] = 0.0
        caps = [math.inf if cap is None else cap for cap in problem.caps]
        self.room: Floats = np.array(caps) - [sum(given.values()) for given in problem.given]
        self.spare = sum(problem.bytes) + sum(problem.workspace)

    def _left(self, placement: Ints) -> Floats:
        here = np.zeros(self.nbytes.shape, dtype=bool)
        here[self.storage, placement[self.run]] = True
        found: Floats = self.room - np.where(here, self.nbytes, 0.0).sum(axis=0)
        return found

    def fits(self, placement: Ints) -> bool:
        """Whether there is room for the state of a placement."""
        return bool(self._left(placement).min() >= 0)

    def surely(self, placement: Ints) -> bool:
        """Whether there is room for all values at once as well."""
        return bool(self._left(placement).min() >= self.spare)
