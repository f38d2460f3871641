"""One chain of simulated annealing over lists, each step timed as wires serve it; `native` has the same compiled."""

from __future__ import annotations

import math
import random
import time
from itertools import count

from .duplicates import recopied, tidy
from .evaluate import Timed
from .moves import Neighbourhood
from .network import Network
from .ruin_recreate import rebuilt

EARLY = 0.03
"""Weight of when the other devices end: of schedules that end together, as many do where runs are alike, the one that
leaves more room is nearer to a shorter one."""
MOVES, SHIFTS, EXCHANGES, GROUPS, RUINS = 4, 2, 3, 2, 2
"""How often one run is moved to another device, or on its own, two change places, many are moved together, or, where
there is room, placed anew, in proportion."""
COPIES = 3
"""How often, as well, copies of runs are made or left out, where there may be any."""
TRIED = 6
"""Runs for each of which one change is estimated, of which the best is timed."""
ESTIMATE = 5
"""Steps that an estimate takes."""
KEEP = 6
"""Schedules returned."""
LOOKS = 16
"""Changes after which the heat is taken anew and the clock is looked at."""
CLOSE = 1e-6
"""Share above the lower bound at which the search ends."""


class Chain:
    """One schedule that is changed again and again; `best` are the shortest there were, the shortest first."""

    def __init__(
        self,
        network: Network,
        start: Timed,
        bound: float,
        draw: random.Random,
        ruins: int,
        copies: int = 0,
    ) -> None:
        self.network, self.bound, self.draw, self.ruins, self.copies = network, bound, draw, ruins, copies
        self.beside = Neighbourhood(network, draw, start)
        self.best = [start]
        self.spent = 0.0

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Go on for about so many steps, from one heat to another, each a share of the shortest makespan."""
        draw, runs = self.draw, self.network.runs
        hot, cold = heats
        few = MOVES + SHIFTS + EXCHANGES
        early = _early(self.beside.now)
        self.spent = 0.0
        for turn in count():
            if self.spent >= steps or self.best[0].makespan <= self.bound * (1 + CLOSE):
                break
            if turn % LOOKS == 0:
                if time.monotonic() > until:
                    break
                share = hot * (cold / hot) ** (self.spent / steps)
            heat = share * self.best[0].makespan
            limit = self.beside.now.makespan - heat * math.log(1 - draw.random())
            kind = draw.random() * (few + GROUPS + self.ruins + self.copies)
            if kind < few:
                timed = self._few(limit, heat)
            elif kind < few + GROUPS:
                timed = self._many(limit)
            else:
                anew = kind < few + GROUPS + self.ruins
                timed = self._anew(limit, heat) if anew else self._recopied(limit)
            if timed and timed.makespan <= limit:
                now = _early(timed)
                if timed.makespan + now > limit + early and timed.makespan >= self.best[0].makespan:
                    continue
                early = now
                self.beside.stand(timed)
                self.spent += runs / 2
                if timed.makespan < self.best[0].makespan:
                    self.best.insert(0, timed)
                    del self.best[KEEP:]

    def _few(self, limit: float, heat: float) -> Timed | None:
        """One or two runs elsewhere: of several such changes the one that is estimated best, give or take the heat."""
        draw, beside = self.draw, self.beside
        tried = 1 + self.network.runs // TRIED
        self.spent += ESTIMATE * tried
        ways = MOVES * [beside.moved] + SHIFTS * [beside.shifted] + EXCHANGES * [beside.exchanged]
        chosen, least = None, math.inf
        for _ in range(tried):
            change = ways[int(draw.random() * len(ways))](beside.run(), limit)
            if change:
                length = change[0] - heat * draw.random()
                if length < least:
                    chosen, least = change[1], length
        if not chosen:
            return None
        device, keys = [*beside.device], [*beside.keys]
        for r, d, key in chosen:
            device[r], keys[r] = d, key
        return self._timed(device, keys, limit)

    def _many(self, limit: float) -> Timed | None:
        """Many runs on another device, in whatever order they can start there."""
        self.spent += ESTIMATE
        beside = self.beside
        device = (beside.gathered if self.draw.random() < 0.5 else beside.stretched)(beside.run())
        return self._timed(device, beside.keys, limit, eager=True) if device else None

    def _anew(self, limit: float, heat: float) -> Timed | None:
        """Some runs placed anew."""
        device, places = rebuilt(self.beside, self.beside.run(), heat)
        self.spent += places
        return self._timed(device, self.beside.keys, limit, eager=True) if device else None

    def _recopied(self, limit: float) -> Timed | None:
        """Copies of runs that were not there, or without some that were."""
        self.spent += ESTIMATE
        beside = self.beside
        device, keys, of = [*beside.device], [*beside.keys], [*beside.now.of]
        changed = recopied(beside, device, keys, of)
        return self._timed(device, keys, limit, True, of) if changed else None

    def _timed(
        self,
        device: list[int],
        keys: list[float],
        limit: float,
        eager: bool = False,
        of: list[int] | None = None,
    ) -> Timed:
        of = [*self.beside.now.of] if of is None else of
        for members in self.network.problem.members:
            moved = [device[r] for r in members if device[r] != self.beside.device[r]]
            for r in members if moved else ():
                device[r] = moved[0]
        if of:
            device, keys = [*device], [*keys]
            tidy(self.network, device, keys, of)
        timed = Timed(self.network, device, keys, limit, self.beside.still(device, keys, of), eager, of)
        self.spent += ESTIMATE + len(timed.ended)
        return timed


def _early(timed: Timed) -> float:
    """`EARLY` of the mean of when devices end, but for the last, in seconds."""
    last = [0.0] * timed.network.devices
    for r in timed.ended:
        # In the order of ends.
        last[timed.device[r]] = timed.end[r]
    total = 0.0
    for end in last:
        # Not by `sum`, which from Python 3.12 on rounds otherwise.
        total += end
    return EARLY * (total - max(last)) / max(1, len(last) - 1)
