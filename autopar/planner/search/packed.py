"""Search among placements that fit, for graphs whose best schedules do not: annealing, timed as wires serve them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..candidates import SHORTER, Entry, Race
from ..contiguous import parts
from ..lists.heft import list_schedule
from ..lists.ranking import urgent_first
from ..model.instance import Instance
from ..native import searches
from .core import CLOSE, Timed, near


@dataclass(frozen=True)
class PackParams:
    """How long it is searched, in steps, and how far a schedule may become worse."""

    each: int = 7_000
    """Clusters placed for each cluster of a graph, at most."""
    fewest: int = 512
    """Placements below which it is not worth beginning."""
    trial: int = 5
    """Times as many steps that a simulation with its memory takes as a placement that is timed to its end."""
    look: int = 20
    """Steps that it takes to see whether what a placement keeps would fit."""
    heat: float = 0.01
    """Share by which a schedule may become worse at first."""
    reorder: float = 0.3
    """How often runs are taken in the order in which a new schedule starts them from then on."""


PARAMS = PackParams()


def pack(race: Race, steps: int, params: PackParams = PARAMS) -> None:
    """Enter the best schedule found among placements that fit, from those of `race` and from `parts`.

    Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of placements: a cluster, all before or
    after it on its device, a stretch of the order, or two of these swapped. State that would not fit is turned down
    unseen; what is accepted is simulated where what is made might not fit either. About `steps` runs are placed, fewer
    of a small graph; nothing is done for a graph so large that only a few
    placements could be tried, nor for one with clusters that may take several lanes, and without the native search
    `parts` alone is tried. Deterministic.
    """
    instance = race.instance
    steps = min(steps, params.each * instance.clusters)
    if instance.modes or len(instance.devices) < 2 or steps < params.fewest * instance.clusters:
        return
    for placement in parts(instance):
        allowed = [(d,) for d in placement]
        entry = race.trial(list_schedule(instance, "packed", urgent_first(instance), allowed=allowed))
        if entry and not entry.over:
            race.admit(entry)
    fitting = [entry for entry in race.entries if not entry.over]
    if fitting and searches():
        _Packing(race, min(fitting, key=lambda entry: entry.makespan), params).search(steps)


class _Packing:
    """The placement at hand, `device`, and the `keys` by which each device takes its clusters."""

    def __init__(self, race: Race, start: Entry, params: PackParams) -> None:
        self.race, self.instance, self.best, self.params = race, race.instance, start, params
        self.draw = random.Random(0)
        self.state = State(race.instance)
        self.device, self.keys = start.play.device, start.play.start[: self.instance.clusters]
        self.makespan = Timed(self.instance, self.device, self.keys, eager=True).makespan

    def search(self, steps: int) -> None:
        """Go on for about as many steps, and enter the best if it is new."""
        first, spent, clusters = self.best, 0.0, self.instance.clusters
        order = self._order()
        enough = self.race.bound * (1 + CLOSE)
        while spent < steps and self.best.makespan > enough and not self.race.late:
            spent += self.params.look
            device = self._child(order)
            if device is None or not self.state.fits(device):
                continue
            heat = self.params.heat * ((1 - spent / steps) * self.draw.random()) ** 2
            limit = self.makespan * (1 + heat)
            timed = Timed(self.instance, device, self.keys, limit, eager=True)
            spent += timed.ended
            if timed.makespan > limit:
                continue
            shorter = timed.makespan < self.best.makespan * (1 - SHORTER)
            if shorter or not self.state.surely(device):
                spent += self.params.trial * clusters
                entry = self.race.trial(timed.schedule("packed"))
                if entry is None or entry.over:
                    continue
                if entry.makespan < self.best.makespan * (1 - SHORTER):
                    self.best = entry
            self.device, self.makespan = device, timed.makespan
            if self.draw.random() < self.params.reorder:
                self.keys = timed.start
                order = self._order()
        if self.best is not first:
            self.race.admit(self.best)

    def _order(self) -> list[int]:
        return sorted(range(self.instance.clusters), key=self.keys.__getitem__)

    def _child(self, order: list[int]) -> list[int] | None:
        """A placement beside that at hand, whose clusters have this order; None where nothing would move or it may
        not."""
        draw, instance, device = self.draw, self.instance, self.device
        place = int(draw.random() * instance.clusters)
        r = order[place]
        if (beside := near(instance, r)) and draw.random() < 0.8:
            target = device[beside[int(draw.random() * len(beside))]]
        else:
            target = int(draw.random() * len(instance.devices))
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
        found = [*device]
        for clusters, d in ((moved, target), (back, own)):
            for each in sorted(clusters):
                if d not in instance.allowed[each]:
                    return None
                for member in instance.together(each):
                    found[member] = d
        return found

    def _side(self, r: int, device: list[int]) -> set[int]:
        """A cluster and all before it, or all after it, that are reached without leaving its device."""
        along = self.instance.before if self.draw.random() < 0.5 else self.instance.after
        found, border = {r}, [r]
        while border:
            for other in along[border.pop()]:
                if other not in found and device[other] == device[r]:
                    found.add(other)
                    border.append(other)
        return found

    def _stretch(self, place: int, device: list[int], order: list[int]) -> set[int]:
        """A cluster and a few of its device that are next to it in the order."""
        wide = 1 + int(8 * self.draw.random() ** 2)
        step = 1 if self.draw.random() < 0.5 else -1
        ahead = order[place::step][: 2 * wide]
        return set([other for other in ahead if device[other] == device[order[place]]][:wide])


class State:
    """True if what runs keep fits; `spare` is as much as there can be beside it."""

    def __init__(self, instance: Instance) -> None:
        storages: dict[str, int] = {}
        held: list[tuple[int, int]] = []
        nbytes: list[int] = []
        for r, kept in enumerate(instance.kept):
            for storage, size in kept:
                if storage not in storages:
                    storages[storage] = len(nbytes)
                    nbytes.append(size)
                held.append((r, storages[storage]))
        self.cluster, self.storage = np.array(held, dtype=np.int64).reshape(-1, 2).T
        self.nbytes: NDArray[np.float64] = np.tile(
            np.array(nbytes, dtype=np.float64)[:, None], len(instance.devices)
        )
        for d, given in enumerate(instance.given):
            self.nbytes[[number for storage, number in storages.items() if storage in given], d] = 0.0
        caps = [math.inf if cap is None else cap for cap in instance.caps]
        self.room: NDArray[np.float64] = np.array(caps) - [sum(given.values()) for given in instance.given]
        self.spare = sum(instance.bytes) + sum(instance.workspace)

    def _left(self, placement: Sequence[int]) -> NDArray[np.float64]:
        here = np.zeros(self.nbytes.shape, dtype=bool)
        here[self.storage, np.array(placement)[self.cluster]] = True
        found: NDArray[np.float64] = self.room - np.where(here, self.nbytes, 0.0).sum(axis=0)
        return found

    def fits(self, placement: Sequence[int]) -> bool:
        """True if there is room for the state of a placement."""
        return bool(self._left(placement).min() >= 0)

    def surely(self, placement: Sequence[int]) -> bool:
        """True if there is room for all values at once as well."""
        return bool(self._left(placement).min() >= self.spare)
