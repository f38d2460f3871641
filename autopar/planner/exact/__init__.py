"""Exact methods for small graphs: all schedules of a tiny one (`every`); and an optimality proof, or a shorter plan, by
constraint programming (`prove`: OR-tools CP-SAT, if installed).

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23, 2018),
transfers as intervals on their buses, and the heads, tails and loads of `bounds`.

The first effort takes half a second of one core and proves most graphs of this size; the second lengthens
heads and tails. Longer efforts follow only while a proof is near (`NEAR`) or gets nearer: otherwise more time
rarely proves anything. Efforts count the solver's deterministic time; a limit in seconds only shortens them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import permutations, product

from ...errors import PlanError
from ..bounds.critical_path import paths
from ..candidates import SHORTER, Entry, Race
from ..model.instance import Instance
from ..model.simulator import Play, Schedule, in_order
from ..model.timing import fits

CLUSTERS = 60
"""Limit on the clusters of a graph to prove."""
EFFORT = 2.0
"""Budget in the solver's deterministic time: up to about 20 s of one core."""
NEAR = 0.05
"""Largest gap, as a share of the bound, at which a further effort is made."""
CLOSE = 2e-3
"""Gap, as a share of the bound, at which the proof ends: the rest would cost as much as everything before."""
NEARER = 2 / 3
"""Largest ratio of the gap after an effort to the gap before it at which a further effort is made."""
PROVEN = 2e-4
"""Gap, as a share of the bound, at which a schedule counts as proven."""


def prove(race: Race, chosen: Entry) -> tuple[Entry, float, bool]:
    """Return the shortest plan found, a lower bound in seconds for plans without duplicates (0: none), and True if
    time ran out.

    An effort that would hardly end in time is not started. Nothing is tried without OR-tools, for a large graph, or if
    the bound is reached.
    """
    instance, bound, until = race.instance, race.bound, race.until
    if not 0 < instance.clusters <= CLUSTERS or chosen.makespan <= bound * (1 + PROVEN):
        return chosen, 0.0, False
    if not find_spec("ortools"):
        return chosen, 0.0, False
    if time.monotonic() >= until:
        return chosen, 0.0, True
    from .proof import proofs

    proven, cut = bound, False
    gap = _above(chosen.makespan, bound)
    for step, proof in enumerate(
        proofs(instance, chosen.play.schedule, EFFORT, budget_s=left(until), bound=bound)
    ):
        proven, before, gap = proof.bound, gap, _above(proof.best.makespan, proof.bound)
        if proof.optimal or gap <= CLOSE or (step and gap > NEAR and gap > before * NEARER):
            break
        cut = proof.late
    if proof.best.schedule is not chosen.play.schedule:
        race.enter(proof.best.schedule)
    return race.best(), proven, cut


def _above(makespan: float, bound: float) -> float:
    return makespan / bound - 1 if bound else math.inf


def left(until: float) -> float:
    """Return the seconds until a time of the monotonic clock."""
    return max(0.0, until - time.monotonic())


MOST = 2_600
"""Limit on the number of lane orders: five clusters on three lanes."""
STEPS = 50_000
"""Limit on simulated clusters and transfers, over all orders of simultaneous requests."""
POLICY = "every order"

Place = tuple[int, int]
"""A device and a lane, by number."""


def tiny(instance: Instance) -> bool:
    """Return True if there are few enough schedules to try them all, and no clusters with several lanes."""
    clusters, lanes = instance.clusters, sum(instance.widths)
    return clusters > 0 and not instance.modes and math.perm(clusters + lanes - 1, clusters) <= MOST


def every(race: Race) -> None:
    """Enter the shortest of all schedules of a `tiny` problem, if it is shorter than the entries so far.

    Covers schedules without duplicates that start everything as early as the lane orders allow, with FIFO
    buses. Stops when the bound is reached.
    """
    instance, bound, leader = race.instance, race.bound, race.leading()
    longest = leader.makespan * (1 - SHORTER) if leader and not leader.over else math.inf
    path = paths(instance, once=True)
    head, tail = path.head.tolist(), path.tail.tolist()
    placements = _placements(instance, (path.head + path.seconds + path.tail).tolist(), longest)
    best: Schedule | None = None
    left = STEPS
    # Lazily, since `longest` falls with each shorter schedule.
    hopeful = (chosen for chosen in placements if _bound(instance, head, tail, chosen) < longest)
    schedules = (schedule for chosen in hopeful for schedule in _orders(instance, chosen))
    for play in (each for schedule in schedules for each in _plays(instance, schedule)):
        left -= len(play.end)
        if play.makespan < longest and fits(play):
            longest, best = play.makespan * (1 - SHORTER), play.schedule
        if left <= 0 or longest <= bound:
            break
    if best:
        race.enter(best)


def _bound(
    instance: Instance, heads: list[list[float]], tails: list[list[float]], chosen: Sequence[Place]
) -> float:
    """Return a lower bound in seconds with each cluster on its lane: the longest path, and for each lane all its work
    between the least head and the least tail."""
    longest, ends = 0.0, list[float]()
    lanes: dict[Place, tuple[float, float, float]] = {}
    for r, place in enumerate(chosen):
        d = place[0]
        start, own, tail = heads[r][d], instance.seconds[r][d], tails[r][d]
        for v in instance.reads[r]:
            maker = instance.maker[v]
            if 0 <= maker < r:
                start = max(start, ends[maker] + instance.travel(v, chosen[maker][0], d))
        ends.append(start + own)
        longest = max(longest, ends[-1] + tail)
        first, work, last = lanes.get(place, (math.inf, 0.0, math.inf))
        lanes[place] = min(first, start), work + own, min(last, tail)
    return max(longest, max(map(sum, lanes.values())))


def _placements(
    instance: Instance, through: list[list[float]], longest: float
) -> Iterator[tuple[Place, ...]]:
    """Yield the lane of each cluster, in all ways that may take less than `longest` seconds. `through`: lower bounds
    with each cluster on each device."""
    lanes = [(d, lane) for d, width in enumerate(instance.widths) for lane in range(width)]
    options = [
        [place for place in lanes if place[0] in allowed and through[r][place[0]] < longest]
        for r, allowed in enumerate(instance.allowed)
    ]
    for chosen in product(*options):
        if all(len({chosen[r][0] for r in members}) == 1 for members in instance.members):
            yield chosen


def _orders(instance: Instance, chosen: Sequence[Place]) -> Iterator[Schedule]:
    """Yield every order of each lane."""
    own: dict[Place, list[int]] = {}
    for r, place in enumerate(chosen):
        own.setdefault(place, []).append(r)
    for orders in product(*(permutations(clusters) for clusters in own.values())):
        if not any(set(order[at:]) & {*instance.before[r]} for order in orders for at, r in enumerate(order)):
            placed = [(r, d, (lane,)) for (d, lane), order in zip(own, orders) for r in order]
            yield in_order(instance, POLICY, placed)


def _plays(instance: Instance, schedule: Schedule) -> Iterator[Play]:
    """Yield simulations of a schedule for every order of transfers that request one bus at the same time."""
    try:
        play = Play(instance, schedule)
    except PlanError:
        # The orders deadlock, or a value has no route to a reader.
        return
    yield play
    if not instance.costed.machine.queued:
        yield from _turned(play, (-1.0, -1))


def _turned(play: Play, last: tuple[float, int]) -> Iterator[Play]:
    """Yield simulations with other orders of the requests after `last`, a (time, queue); later ones follow from
    these."""
    instance, first = play.instance, play.instance.clusters
    asking: dict[tuple[float, int], list[int]] = {}
    for step, (_, hop) in enumerate(play.moves, first):
        if hop.lane >= 0 and (play.ready[step], hop.lane) > last:
            asking.setdefault((play.ready[step], hop.lane), []).append(step)
    order = sorted(range(first, len(play.end)), key=play.when)
    for key in sorted(asking):
        tied = sorted(asking[key], key=play.when)
        for turn in permutations(tied) if len(tied) > 1 else ():
            if [*turn] == tied:
                continue
            instead = dict(zip(tied, turn))
            moves = [play.moves[instead.get(step, step) - first] for step in order]
            copies = in_order(instance, "", (), moves).copies
            other = Play(instance, replace(play.schedule, copies=copies, first_come=True))
            yield other
            yield from _turned(other, key)
