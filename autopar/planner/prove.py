"""Prove a small plan the shortest, or find a shorter one, where OR-tools is installed.

First a short effort, half a second of a core, which proves most graphs of this size; then one for what must come before
and after each cluster. Longer ones are made only while a proof is near (`near`) or comes nearer: elsewhere more seconds
rarely prove anything. Efforts are counted by the solver's deterministic clock: a ceiling in seconds may end them early,
and never makes them longer.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec

from .candidates import Entry, Race

CLUSTERS = 60
"""Clusters of the largest graph that is worth the effort."""
EFFORT = 2.0
"""Budget in the deterministic time of the solver: up to some twenty seconds of a core."""
NEAR = 0.05
"""Share by which the shortest schedule may be above its bound for a further effort."""
CLOSE = 2e-3
"""Share above its bound at which a schedule is left as it is: the rest costs as much to prove as all before."""
NEARER = 2 / 3
"""Largest ratio of the gap after an effort to that before it for a further one, where a proof is not near."""
PROVEN = 2e-4
"""Share above its bound at which a schedule counts as proven."""


def prove(race: Race, chosen: Entry) -> tuple[Entry, float, bool]:
    """The shortest plan found, a bound in seconds that holds for plans that do every cluster once (0: none sought), and
    True if there was no time for all of it.

    What would hardly be done in time is not begun. Nothing is tried where OR-tools is missing, the graph is large, or
    the bound is reached.
    """
    instance, bound, until = race.instance, race.bound, race.until
    if not 0 < instance.clusters <= CLUSTERS or chosen.makespan <= bound * (1 + PROVEN):
        return chosen, 0.0, False
    if not find_spec("ortools"):
        return chosen, 0.0, False
    if time.monotonic() >= until:
        return chosen, 0.0, True
    from .exact.proof import proofs

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
    """Seconds until a time of the monotonic clock; None for no such time."""
    return None if until == math.inf else max(0.0, until - time.monotonic())
