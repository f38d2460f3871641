"""A proof, one call of CP-SAT after the other, and the two ways to prove more: the whole model, and parts of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from ortools.sat.python import cp_model

from ...ir.plan_check import sound
from ..bounds import lower_bound
from ..bounds.critical_path import ways
from ..bounds.load import load
from ..model.instance import Instance
from ..model.memory import fits
from ..model.simulator import Move, Play, Schedule
from .memory import cap
from .model import Model, Units, solver
from .transfers import Transfers
from .windows import narrowed

EFFORT = 6.0
"""Budget of a proof in units of the solver's deterministic time, about ten seconds of a core each."""
FIRST = 0.05
"""Of it on the whole graph at first, which proves most small ones."""
NARROWING = 0.4
"""Then on heads and tails, at most."""
FOLLOWING, GROWTH = 0.3, 3.0
"""Then on the whole graph again, and each time so many times as much."""
STAGES = ((10_000, 0.7), (100_000, 1.0))
"""Units that the best known schedule is long, and the share of what is left of a step to be spent with them: few make
the solver quick, and what it then finds leaves little to prove with many (a million made it count for half a minute
unseen)."""
TOLERANCE = 2e-4
"""Share by which makespans differ that count as one, as the solver counts in whole units."""


def proofs(
    instance: Instance,
    start: Schedule,
    effort: float = EFFORT,
    *,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Iterator[_Proof]:
    """Improve `start`, which must fit, until it is proven that nothing is shorter or the effort is spent.

    What is known after each step, which the next changes: a short one first, then one for heads and tails, then longer
    ones. `bound` is a bound in seconds that is known, `budget_s` a ceiling. The model has a variable for each cluster,
    and each value, on each device: it is for up to some hundreds of clusters.
    """
    proof = _Proof(instance, start, bound, effort, budget_s)
    proof.solve(FIRST)
    yield proof
    if proof.going:
        proof.narrow(NARROWING)
        yield proof
    following = FOLLOWING
    while proof.going:
        proof.solve(following)
        yield proof
        following *= GROWTH


class _Proof:
    """The best `schedule` known and its simulation, a `bound` in seconds for schedules that do every cluster once, and
    the effort `spent` of what there is."""

    def __init__(
        self, instance: Instance, start: Schedule, bound: float, effort: float, budget_s: float | None
    ) -> None:
        began = time.monotonic()
        self.instance, self.schedule, self.best = instance, start, Play(instance, start)
        self.ways = ways(instance, once=True)
        shared = load(instance, self.ways)
        self.bound = 0.0
        self._raise(max(bound, lower_bound(instance), self.ways.length, shared.seconds))
        self.effort, self.spent = effort, 0.0
        self._until = math.inf if budget_s is None else began + budget_s
        # What a model takes to be made is not cut short, and takes less than all this.
        self._last = self._until - (time.monotonic() - began)
        self._stages = list(STAGES)

    @property
    def optimal(self) -> bool:
        """True if no schedule is shorter by more than the tolerance."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    @property
    def late(self) -> bool:
        """True if what is left until the ceiling in seconds is too little to prove anything more in, so that another
        run may find something else."""
        return not self.optimal and time.monotonic() >= self._last

    @property
    def going(self) -> bool:
        """True if there is something left to prove, and to spend on it."""
        return not self.optimal and not self.late and self.spent < self.effort and bool(self._stages)

    def solve(self, effort: float) -> None:
        """Look for a shorter schedule, or a proof that there is none, for so much effort at most."""
        until = min(self.effort, self.spent + effort)
        for stage in list(self._stages):
            if not self.going or self.spent >= until:
                return
            count, share = stage
            if self._solved(Units(self.best.makespan, count), (until - self.spent) * share):
                self._stages.remove(stage)

    def narrow(self, effort: float) -> None:
        """Look for longer heads and tails, for so much effort at most."""
        effort = min(effort, self.effort - self.spent)
        self.ways, spent = narrowed(self.instance, self.best, self.ways, self._below, effort, self._last)
        self.spent += spent
        self._raise(self.ways.length)

    def _solved(self, units: Units, effort: float) -> bool:
        """True if one call of the solver leaves nothing to prove in these units of time. Deterministic but for the
        ceiling in seconds."""
        instance, aim = self.instance, units.floor(self._below)
        model = Model(instance, units, self.best, replace(self.ways, length=self.bound), aim)
        transfers = Transfers(model)
        model.limit()
        if instance.tight:
            cap(model, transfers)
        own = solver(effort, self._until)
        status = own.solve(model.cp)
        self.spent += own.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            self._raise(units.seconds(aim + 1))
            return True
        self._raise(units.seconds(min(max(model.floor, round(own.best_objective_bound)), aim + 1)))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            schedule = _read(model, transfers, own)
            play = Play(instance, schedule)
            if play.makespan < self.best.makespan and fits(instance, play):
                self.schedule, self.best = schedule, play
                self._raise(self.bound)
        return bool(status == cp_model.OPTIMAL)

    @property
    def _below(self) -> float:
        """Seconds of the longest schedule that is still sought."""
        return self.best.makespan / (1 + TOLERANCE)

    def _raise(self, bound: float) -> None:
        self.bound = sound(max(self.bound, bound), self.best.makespan)


def _read(model: Model, transfers: Transfers, solver: cp_model.CpSolver) -> Schedule:
    """The orders of all queues; of things at one moment those that take no time come first, then by graph order."""
    instance = model.instance
    lanes: dict[str, list[str]] = {lane: [] for names in instance.lane_names for lane in names}
    free = dict.fromkeys(lanes, 0)
    device = [next(d for d, here in row.items() if solver.boolean_value(here)) for row in model.on]
    start = [solver.value(start) for start in model.start]
    end = [solver.value(end) for end in model.end]
    for r in sorted(range(instance.clusters), key=lambda r: (start[r], end[r], r)):
        d = device[r]
        wide = next(n for n, _, when in model.modes[r, d] if solver.boolean_value(when))
        # The lane that has been free for the shortest time; one that is taken is so for a rounding error.
        own = sorted(instance.lane_names[d], key=lambda lane: (free[lane] > start[r], -free[lane]))
        for lane in own[:wide]:
            lanes[lane].append(instance.names[r])
            free[lane] = end[r]
    moves: dict[str, list[tuple[int, int, int, Move]]] = {}
    for (v, target), brings in transfers.brings.items():
        for when, via, queue, size in brings:
            if queue >= 0 and solver.boolean_value(when):
                maker = instance.maker[v]
                source = via if via >= 0 else device[maker] if maker >= 0 else instance.home[v]
                begin = solver.value(transfers.start[v, target])
                move = instance.values[v], instance.devices[source], instance.devices[target]
                moves.setdefault(instance.copy_lanes[queue], []).append((begin, begin + size, maker, move))
    return Schedule(
        "exact",
        {lane: tuple(names) for lane, names in lanes.items()},
        {
            queue: tuple(move for *_, move in sorted(entries, key=lambda entry: entry[:3]))
            for queue, entries in moves.items()
        },
    )
