"""Optimality proof, or a shorter plan, for small graphs by constraint programming (OR-tools CP-SAT, if installed).

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23, 2018),
transfers as intervals on their buses, and the heads, tails and loads of `bounds`.

The first effort takes half a second of one core and proves most graphs of this size; the second lengthens
heads and tails. Longer efforts follow only while a proof is near (`NEAR`) or gets nearer: otherwise more time
rarely proves anything. Efforts count the solver's deterministic time; a limit in seconds only shortens them.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec

from ..candidates import Entry, Race

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
        proofs(instance, chosen.schedule, EFFORT, budget_s=left(until), bound=bound)
    ):
        proven, before, gap = proof.bound, gap, _above(proof.best.makespan, proof.bound)
        if proof.optimal or gap <= CLOSE or (step and gap > NEAR and gap > before * NEARER):
            break
        cut = proof.late
    if proof.schedule is not chosen.schedule:
        race.enter(proof.schedule)
    return race.best(), proven, cut


def _above(makespan: float, bound: float) -> float:
    return makespan / bound - 1 if bound else math.inf


def left(until: float) -> float | None:
    """Return the seconds until a time of the monotonic clock; None for None."""
    return None if until == math.inf else max(0.0, until - time.monotonic())
