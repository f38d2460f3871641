"""Improve list schedules: chains of priority lists that are changed a little, decoded in batches and kept if good.

The lists are random keys (Bean, "Genetic algorithms and random keys for sequencing and optimization", ORSA Journal on
Computing 6(2), 1994); each chain accepts as simulated annealing does, and the best chains take over the worst.
"""

from __future__ import annotations

import math
import time

import numpy as np

from ..problem import Problem
from ..simulate import Schedule
from .batch import FAR, Candidates, Decoded, schedule
from .priorities import noisy_orders, places
from .rank import cost_to_go
from .served import carried_out, served
from .tables import Bools, Floats, Ints, Tables

STEPS = 1_300_000
"""Runs placed in all candidates together, at most; the search is counted in these, never in seconds."""
EACH = 10_000
"""The same for each run of a graph, but `LEAST` for a small one, unless it is so small that it has few schedules."""
LEAST = 400_000
SQUARE = 700
"""The same for each pair of runs of a tiny graph."""
LARGE = 1_500
"""Runs from which on a graph is too large for this; the steps shrink towards it."""
CHAINS = 16
CHILDREN = 16
"""Lists tried of each chain in a round."""
FIRST = 128
"""Lists in the first round."""
AHEAD = (0.0, 0.25, 0.5, 1.0)
"""Weights of what is still to come, in where a run goes."""
STAY = (0.0, 0.05, 0.1, 0.3, 1.0)
"""Weights of the seconds spent on copies, in where a run goes."""
IDLE = 0.2
"""Weight of when the other devices end: of two plans that end together the one that leaves more room is nearer to a
better one."""
HEAT = 0.02
"""Share by which a chain may become worse at first."""
TAKE_OVER = 4
"""Rounds between the best chains' taking over the worst."""
RADII = 4
"""Edges from a run at most to those that are moved with it."""
TIMED = 0.45
"""What it costs to time a list, where 1 is to decode one."""
KEEP = 6
"""Schedules returned."""
CLOSE = 1e-6
"""Share above the lower bound at which the search ends."""


def evolve(problem: Problem, bound: float, steps: int = STEPS, until: float = math.inf) -> list[Schedule]:
    """The best schedules found, the shortest first.

    About `steps` runs are placed, fewer of a small graph and of a large one, or until `until` of the monotonic clock.
    Devices, queues, wires and the order of copies are in the model; memory caps and the host's dispatch are not:
    `simulate` has the last word. Nothing for a graph so large that one round would be too many steps, nor for one
    with runs that may take several lanes.
    """
    runs = problem.runs
    steps = int(min(steps, max(min(LEAST, SQUARE * runs * runs), EACH * runs)) * max(0.0, 1 - runs / LARGE))
    queues = sum(len(lanes) for lanes in problem.lane_names)
    if runs < 2 or queues < 2 or problem.modes or steps < 2 * FIRST * runs:
        return []
    return _Population(problem).search(steps // runs, bound, until)


class _Population:
    def __init__(self, problem: Problem) -> None:
        self.tables = tables = Tables(problem)
        self.to_go = np.minimum(cost_to_go(problem), FAR)
        self.draw = np.random.default_rng(0)
        self.free = np.isfinite(self.tables.seconds)
        self.near = self._neighbourhoods()
        self.leader = np.arange(tables.runs)
        for members in problem.members:
            self.leader[members] = min(members)
        self.best: list[tuple[float, Schedule]] = []

    def _neighbourhoods(self) -> Bools:
        """(RADII, R, R): which runs are within one edge of each, two, and so on."""
        runs = self.tables.runs
        edges = np.eye(runs, dtype=bool)
        for r, earlier in enumerate(self.tables.problem.before):
            edges[r, earlier] = True
        edges |= edges.T
        found = [edges]
        for _ in range(RADII - 1):
            found.append((found[-1].astype(np.float32) @ edges.astype(np.float32)) > 0)
        return np.array(found)

    def search(self, lists: int, bound: float, until: float) -> list[Schedule]:
        """Decode about `lists` lists."""
        draw, tables = self.draw, self.tables
        order = noisy_orders(tables, FIRST, draw)
        fixed = np.full(order.shape, -1)
        ahead, stay = draw.choice(AHEAD, FIRST), draw.choice(STAY, FIRST)
        ahead[:2], stay[:2] = (0.0, 1.0), 0.0
        decoded = self._decode(Candidates(order, fixed, ahead, stay))
        score = self._score(decoded)
        chosen = np.argsort(score, kind="stable")[:CHAINS]
        keys, device = places(decoded.start[chosen]), decoded.device[chosen].copy()
        lane = decoded.lane[chosen].copy()
        score, ahead, stay = score[chosen], ahead[chosen], stay[chosen]
        each = (1 + 2 * TIMED) / 2 if self.tables.first_come else 1.0
        rounds = max(1, int((lists - FIRST) / (CHAINS * CHILDREN * each)))
        parent = np.repeat(np.arange(CHAINS), CHILDREN)
        for number in range(rounds):
            if (self.best and self.best[0][0] <= bound * (1 + CLOSE)) or time.monotonic() > until:
                break
            warmth = 1 - number / rounds
            if self.tables.first_come and number % 2:
                weights = ahead[parent], stay[parent]
                decoded = self._timed(keys[parent], device[parent], lane[parent])
            else:
                weights = self._mutated(ahead[parent], AHEAD), self._mutated(stay[parent], STAY)
                listed = self._children(keys[parent], device[parent], warmth)
                order = np.argsort(listed[0], axis=1, kind="stable")
                decoded = self._decode(Candidates(order, listed[1], *weights))
            found = self._score(decoded).reshape(CHAINS, CHILDREN)
            row = found.argmin(axis=1) + np.arange(CHAINS) * CHILDREN
            found = found.min(axis=1)
            kept = found <= score * (1 + HEAT * warmth * draw.random(CHAINS) ** 2)
            rows = row[kept]
            keys[kept], device[kept] = places(decoded.start[rows]), decoded.device[rows]
            lane[kept] = decoded.lane[rows]
            score[kept], ahead[kept], stay[kept] = found[kept], weights[0][rows], weights[1][rows]
            if number % TAKE_OVER == TAKE_OVER - 1:
                ranked = np.argsort(score, kind="stable")
                better, worse = ranked[: CHAINS // 4], ranked[-(CHAINS // 4) :]
                for own in (keys, device, lane, score, ahead, stay):
                    own[worse] = own[better]
        return [found for _, found in self.best]

    def _decode(self, candidates: Candidates) -> Decoded:
        decoded = carried_out(self.tables, candidates, self.to_go)
        self._keep(decoded)
        return decoded

    def _timed(self, keys: Floats, device: Ints, lane: Ints) -> Decoded:
        """Lists changed a little and timed as they then are: no run chooses its device or a gap."""
        tables, draw = self.tables, self.draw
        slot = np.arange(len(keys)) % CHILDREN
        keys, moved, lane = keys.copy(), device.copy(), lane.copy()
        self._move(moved, np.flatnonzero(slot % 2 == 0))
        self._gather(moved, np.flatnonzero(slot % 8 == 1))
        self._shift(keys, np.flatnonzero((slot % 2 == 1) | (slot % 4 == 2)))
        if tables.groups:
            moved = moved[:, self.leader]
        changed = moved != device
        lane[changed] = (draw.random(int(changed.sum())) * tables.lanes[moved[changed]]).astype(np.int64)
        lane = np.minimum(lane, tables.lanes[moved] - 1)
        decoded = served(tables, Decoded(np.zeros(len(keys)), keys, keys, moved, lane, np.zeros(0)))
        self._keep(decoded)
        return decoded

    def _keep(self, decoded: Decoded) -> None:
        best = self.best
        row = int(decoded.makespan.argmin())
        length = float(decoded.makespan[row])
        # Where no way leads between devices, a list may have no schedule at all.
        if length < (best[0][0] if best else FAR):
            found = schedule(self.tables, decoded, row, "search", copies=not self.tables.first_come)
            best.insert(0, (length, found))
            del best[KEEP:]

    def _score(self, decoded: Decoded) -> Floats:
        """Makespans, plus a little for what keeps the other devices busy until late."""
        rows = np.arange(len(decoded.makespan))[:, None]
        last = np.zeros((len(rows), self.tables.devices))
        np.maximum.at(last, (rows, decoded.device), decoded.end)
        last.sort(axis=1)
        return decoded.makespan + (IDLE * last[:, :-1].mean(axis=1) if self.tables.devices > 1 else 0.0)

    def _mutated(self, weights: Floats, choices: tuple[float, ...]) -> Floats:
        change = self.draw.random(len(weights)) < 0.1
        return np.where(change, self.draw.choice(choices, len(weights)), weights)

    def _children(self, keys: Floats, device: Ints, warmth: float) -> tuple[Floats, Ints]:
        """Changed lists; of the sixteen of a chain six choose devices anew, two of them all but a gathered few."""
        keys, fixed = keys.copy(), device.copy()
        slot = np.arange(len(keys)) % CHILDREN
        shaken = slot // 2 % 2 == 0
        self._shift(keys, np.flatnonzero(~shaken))
        self._move(fixed, np.flatnonzero((slot >= 6) & (slot < 10)))
        self._gather(fixed, np.flatnonzero((slot == 6) | ((slot >= 10) & (slot < 13))))
        self._loosen(keys, fixed, np.flatnonzero((slot >= 13) | (self.draw.random(len(keys)) < 0.1)))
        fixed[slot < 6] = -1
        self._gather(fixed, np.flatnonzero((slot == 1) | (slot == 2)))
        self._shake(keys, np.flatnonzero(shaken), warmth)
        return keys, fixed

    def _gather(self, fixed: Ints, rows: Ints) -> None:
        """Put a run of each list and all within a few edges of it on one device."""
        draw, tables = self.draw, self.tables
        run = draw.integers(0, tables.runs, len(rows))
        device = draw.integers(0, tables.devices, len(rows))
        near = self.near[draw.integers(0, len(self.near), len(rows)), run]
        near &= self.free[:, device].T
        fixed[rows] = np.where(near, device[:, None], fixed[rows])

    def _shift(self, keys: Floats, rows: Ints) -> None:
        """Put one to three runs of each list elsewhere between those they wait for and those that wait for them."""
        draw, tables, runs = self.draw, self.tables, self.tables.runs
        times = draw.integers(1, 4, len(rows))
        for turn in range(3):
            at = rows[times > turn]
            run = draw.integers(0, runs, len(at))
            own = np.concatenate([keys[at], np.full((len(at), 1), -1.0)], axis=1)
            low = np.take_along_axis(own, tables.parents[run], axis=1).max(axis=1)
            own[:, -1] = runs
            high = np.take_along_axis(own, tables.children[run], axis=1).min(axis=1)
            now = keys[at, run]
            reach = np.where(draw.random(len(at)) < 0.5, 0.15 * runs + 2, runs)
            low, high = np.maximum(low, now - reach), np.minimum(high, now + reach)
            keys[at, run] = low + draw.uniform(0.01, 0.99, len(at)) * (high - low)

    def _move(self, fixed: Ints, rows: Ints) -> None:
        """Give one to three runs of each list another device, often that of a run beside it."""
        draw, tables = self.draw, self.tables
        times = draw.integers(1, 4, len(rows))
        beside = np.concatenate([tables.parents, tables.children], axis=1)
        for turn in range(3):
            at = rows[times > turn]
            run = draw.integers(0, tables.runs, len(at))
            other = beside[run, draw.integers(0, beside.shape[1], len(at))]
            near = (other < tables.runs) & (draw.random(len(at)) < 0.6)
            device = draw.integers(0, tables.devices, len(at))
            device = np.where(near, fixed[at, np.minimum(other, tables.runs - 1)], device)
            fits = self.free[run, device]
            fixed[at[fits], run[fits]] = device[fits]

    def _loosen(self, keys: Floats, fixed: Ints, rows: Ints) -> None:
        """Let most runs of a stretch of each list choose their devices anew."""
        draw, runs = self.draw, self.tables.runs
        middle = draw.uniform(0, runs, len(rows))[:, None]
        reach = draw.uniform(2, max(3.0, min(0.3 * runs, 20.0)), len(rows))[:, None]
        loose = (np.abs(keys[rows] - middle) < reach) & (draw.random((len(rows), runs)) < 0.7)
        fixed[rows] = np.where(loose, -1, fixed[rows])

    def _shake(self, keys: Floats, rows: Ints, warmth: float) -> None:
        """Add noise to the keys of some runs of each list, and mend what is before a run it waits for."""
        draw, runs = self.draw, self.tables.runs
        reach = 0.06 * runs * np.exp(draw.normal(0, 1, len(rows)))[:, None] * (0.2 + 0.8 * warmth)
        some = draw.random((len(rows), runs)) < draw.choice((0.1, 0.3, 1.0), len(rows))[:, None]
        own = np.full((len(rows), runs + 1), -math.inf)
        own[:, :runs] = keys[rows] + np.where(some, draw.normal(0, 1, (len(rows), runs)) * reach, 0.0)
        for run, earlier in enumerate(self.tables.problem.before):
            if earlier:
                own[:, run] = np.maximum(own[:, run], own[:, earlier].max(axis=1) + 1e-6)
        keys[rows] = own[:, :runs]
