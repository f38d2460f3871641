"""Successive CP-SAT calls that tighten a proof, on the whole model and on parts of it.

`narrowed` first lengthens heads and tails, for schedules without duplicates, from optimal schedules of the
parts of the graph before and after each cluster. A schedule of the graph contains one of each part, so a
cluster cannot start before all its predecessors can have ended, each with its own head; likewise backwards. A
part ends at a cluster through which everything passes, without loss; otherwise it consists of the nearest
clusters. Only schedules shorter than the best known count, which rules out devices (Klein and Scholl,
"Computing lower bounds by destructive improvement", European Journal of Operational Research 112, 1999).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from ...ir.plan_check import sound
from ..bounds.ancestors import joined
from ..bounds.critical_path import Paths, paths
from ..bounds.load import load
from ..model.instance import Instance
from ..model.simulator import Play, Schedule, in_order
from ..model.timing import fits
from ..model.toposort import ancestors
from .model import Model, TimeUnits, solver, weigh
from .transfers import cap, transfer

FIRST = 0.05
"""Share of the budget for the first call on the whole graph, which proves most small ones."""
NARROWING = 0.4
"""Largest share then spent on heads and tails."""
FOLLOWING, GROWTH = 0.3, 3.0
"""Share of the next call on the whole graph, and the factor from each call to the next."""
STAGES = ((10_000, 0.7), (100_000, 1.0))
"""(length of the best known schedule in units, share of the remaining effort of a step). With few units the solver is
fast, and little remains to be proven with many (a million made it count for half a minute unseen)."""
TOLERANCE = 2e-4
"""Relative difference of makespans that counts as equal, because of the solver's whole units."""


def proofs(
    instance: Instance,
    start: Schedule,
    effort: float,
    *,
    budget_s: float = math.inf,
    bound: float = 0.0,
) -> Iterator[_Proof]:
    """Improve `start`, which must fit, until it is proven optimal or the effort is spent; yield the state after each
    step.

    Steps: a short call, one for heads and tails, then longer calls. The model has a variable for each (cluster, device)
    and (value, device), which suits up to some hundreds of clusters.

    effort: budget in the solver's deterministic time; a unit is about 10 s of a core.
    budget_s: limit in seconds (infinite: none).
    bound: known lower bound in seconds.
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
    """State of a proof: the `best` schedule, a lower `bound` in seconds for schedules without duplicates, and the
    effort `spent`."""

    def __init__(
        self, instance: Instance, start: Schedule, bound: float, effort: float, budget_s: float
    ) -> None:
        began = time.monotonic()
        self.instance, self.best = instance, Play(instance, start)
        self.paths = joined(instance, paths(instance, once=True))
        self.bound = 0.0
        shared, self.price = load(instance, self.paths)
        self._raise(max(bound, self.paths.length, shared))
        self.effort, self.spent = effort, 0.0
        self._until = began + budget_s
        # Building a model cannot be cut short, and takes about as long as this constructor, or some times longer.
        self._last = self._until - (time.monotonic() - began)
        self._stages = list(STAGES)

    @property
    def optimal(self) -> bool:
        """True if no schedule is shorter by more than the tolerance."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    @property
    def late(self) -> bool:
        """True if too little time is left to prove anything, so that another run may find something else."""
        return not self.optimal and time.monotonic() >= self._last

    @property
    def going(self) -> bool:
        """True if the proof is open and there is effort left."""
        return not self.optimal and not self.late and self.spent < self.effort and bool(self._stages)

    def solve(self, effort: float) -> None:
        """Search for a shorter schedule, or a proof that there is none, with at most this effort."""
        until = min(self.effort, self.spent + effort)
        for stage in list(self._stages):
            if not self.going or self.spent >= until:
                return
            count, share = stage
            if self._solved(TimeUnits(self.best.makespan, count), (until - self.spent) * share):
                self._stages.remove(stage)

    def narrow(self, effort: float) -> None:
        """Lengthen heads and tails, with at most this effort."""
        effort = min(effort, self.effort - self.spent)
        self.paths, spent = narrowed(self.instance, self.best, self.paths, self._below, effort, self._last)
        self.spent += spent
        self._raise(self.paths.length)

    def _solved(self, units: TimeUnits, effort: float) -> bool:
        """Return True if one call of the solver completes the proof in this resolution. Deterministic except for the
        time limit."""
        instance, aim = self.instance, units.floor(self._below)
        model = Model(instance, units, self.best, replace(self.paths, length=self.bound), aim)
        transfer(model)
        model.limit()
        weigh(model, self.price)
        if instance.tight:
            cap(model)
        own = solver(effort, self._until)
        status = own.solve(model.cp)
        self.spent += own.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            self._raise(units.seconds(aim + 1))
            return True
        self._raise(units.seconds(min(max(model.floor, round(own.best_objective_bound)), aim + 1)))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            play = Play(instance, _read(model, own))
            if play.makespan < self.best.makespan and fits(play):
                self.best = play
                self._raise(self.bound)
        return bool(status == cp_model.OPTIMAL)

    @property
    def _below(self) -> float:
        """The length in seconds below which schedules are sought."""
        return self.best.makespan / (1 + TOLERANCE)

    def _raise(self, bound: float) -> None:
        self.bound = sound(max(self.bound, bound), self.best.makespan)


def _read(model: Model, solver: cp_model.CpSolver) -> Schedule:
    """Return the orders of all queues; simultaneous steps of zero length come first, then in graph order."""
    instance = model.instance
    device = [next(d for d, here in row.items() if solver.boolean_value(here)) for row in model.on]
    start = [solver.value(start) for start in model.start]
    end = [solver.value(end) for end in model.end]
    free = [[0] * width for width in instance.widths]
    placed = []
    for r in sorted(range(instance.clusters), key=lambda r: (start[r], end[r], r)):
        d, lanes = device[r], free[device[r]]
        wide = next(n for n, _, when in model.modes[r, d] if solver.boolean_value(when))
        # The lane that has been free for the shortest time; a lane seems taken only by a rounding error.
        own = sorted(range(len(lanes)), key=lambda lane: (lanes[lane] > start[r], -lanes[lane]))[:wide]
        placed.append((r, d, tuple(own)))
        for lane in own:
            lanes[lane] = end[r]
    moves = []
    for (v, target), brings in model.brings.items():
        for when, via, queue, size in brings:
            if queue >= 0 and solver.boolean_value(when):
                maker = instance.maker[v]
                source = via if via >= 0 else device[maker] if maker >= 0 else instance.home[v]
                begin = solver.value(model.sent[v, target])
                moves.append(((begin, begin + size, maker), (v, instance.hops[source, target])))
    moves.sort(key=lambda move: move[0])
    return in_order(instance, "exact", placed, [move for _, move in moves])


UNITS = 100_000
"""Units of the best known schedule: rounding errors add up along the graph."""
CLOSED = 14
"""Limit on the clusters of a part back to one cluster through which everything passes."""
OPEN = 8
"""Clusters of any other part."""
EACH = 0.03
"""Limit on the effort for one part."""


def narrowed(
    instance: Instance, best: Play, paths: Paths, below: float, effort: float, until: float = math.inf
) -> tuple[Paths, float]:
    """Lengthen heads and tails for schedules without duplicates of at most `below` seconds; return them and the effort
    spent.

    A `length` above `below` proves that there are none. Deterministic unless `until`, a time of the monotonic clock,
    is reached.
    """
    units = TimeUnits(best.makespan, UNITS)
    search = _Windows(instance, best, units, units.floor(below), until, paths, effort)
    search.sweep(forward=True, least=effort / 2)
    search.sweep(forward=False, least=0.0)
    return search.paths, effort - search.left


@dataclass
class _Windows:
    """`paths` as known so far, for schedules of at most `aim` units, and `left` of the effort."""

    instance: Instance
    best: Play
    units: TimeUnits
    aim: int
    until: float
    paths: Paths
    left: float

    def sweep(self, forward: bool, least: float) -> None:
        """Lengthen heads of all clusters with several inputs, or tails of those with several readers, until only the
        effort `least` is left."""
        instance = self.instance
        near = instance.before if forward else instance.after
        order = range(instance.clusters)
        related = ancestors(near, order if forward else order[::-1])
        paths = self.paths = replace(self.paths, head=self.paths.head.copy(), tail=self.paths.tail.copy())
        own, other = (paths.head, paths.tail) if forward else (paths.tail, paths.head)
        for r in order if forward else order[::-1]:
            part = _part(related, r, forward) if len(near[r]) > 1 else []
            for d in instance.allowed[r] if len(part) > 2 else ():
                if self.left <= least or time.monotonic() >= self.until:
                    break
                if np.isfinite(own[r, d] + other[r, d]):
                    limit = self.aim - self.units.floor(other[r, d])
                    own[r, d] = max(own[r, d], self._length(part, r, d, limit, forward) - paths.seconds[r, d])
        length = max(paths.length, float((paths.head + paths.seconds + paths.tail).min(axis=1).max()))
        self.paths = replace(paths, length=min(length, self.units.seconds(self.aim + 1)))

    def _length(self, part: Sequence[int], r: int, d: int, limit: int, forward: bool) -> float:
        """Return a lower bound in seconds on the part next to cluster r together with r on device d; more
        than `limit` units if no schedule is that short."""
        instance, paths, units = self.instance, self.paths, self.units
        none = np.where(np.isfinite(paths.seconds), 0.0, np.inf)
        least = (paths.head if forward else paths.tail)[r, d] + paths.seconds[r, d]
        if units.floor(least) > limit:
            return float(least)
        around = Paths(paths.head if forward else none, none if forward else paths.tail, paths.seconds, least)
        offered: list[Sequence[int]] = [()] * instance.clusters
        for q in part:
            offered[q] = instance.allowed[q]
        offered[r] = (d,)
        model = Model(instance, units, self.best, around, limit, offered)
        transfer(model)
        model.limit()
        own = solver(min(EACH, self.left), self.until)
        # These steps take long and save time later only on the whole model.
        own.parameters.cp_model_probing_level = 0
        own.parameters.symmetry_level = 0
        status = own.solve(model.cp)
        self.left -= own.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            return units.seconds(limit + 1)
        return float(max(least, units.seconds(round(own.best_objective_bound))))


def _part(related: Sequence[int], r: int, forward: bool) -> list[int]:
    """Return the clusters next to r: all back to one through which everything passes, if few, or the nearest."""
    order = [q for q in range(len(related)) if related[r] >> q & 1]
    if forward:
        order.reverse()
    shared = related[r]
    for count, q in enumerate(order[:CLOSED], 1):
        rest = related[r] & ~sum(1 << p for p in order[:count])
        if count > 1 and rest == related[q] and shared >> q & 1:
            return order[:count]
        shared &= related[q]
    return order if len(order) <= CLOSED else order[:OPEN]
