"""Prove a small plan the shortest, or find a shorter one, where OR-tools is installed.

First a short effort, half a second of a core, which proves most graphs of this size; then one for what must come before
and after each cluster. Longer ones are made only while a proof is near (`near`) or comes nearer: elsewhere more seconds
rarely prove anything. Efforts are counted by the solver's deterministic clock: a ceiling in seconds may end them early,
and never makes them longer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from importlib.util import find_spec

from .candidates import Entry, Race
from .exact import Params, held, proofs


@dataclass(frozen=True)
class ProveParams:
    """Which plans are worth how much effort, by the deterministic clock of the solver."""

    clusters: int = 60
    """Clusters of the largest graph that is worth the effort."""
    solver: Params = field(default_factory=lambda: Params(effort=2.0))
    """Up to some twenty seconds of a core."""
    held: Params = field(default_factory=lambda: Params(effort=0.15))
    """Up to about a second of a core on schedules whose wires serve first come, first served."""
    near: float = 0.05
    """Share by which the shortest schedule may be above its bound for a further effort."""
    close: float = 2e-3
    """Share above its bound at which a schedule is left as it is: the rest costs as much to prove as all before."""
    nearer: float = 2 / 3
    """What an effort may leave of that share, or less, for a further one where a proof is not near."""


PARAMS = ProveParams()


@dataclass(frozen=True)
class Proven:
    """The shortest plan found, and a bound that holds for plans that do every cluster once (0: none sought), in
    seconds. `cut`: there was no time for all of it."""

    entry: Entry
    bound: float = 0.0
    cut: bool = False


def prove(race: Race, chosen: Entry, params: ProveParams = PARAMS) -> Proven:
    """Look for a shorter plan, or a proof that there is none.

    What would hardly be done in time is not begun. Nothing is tried where OR-tools is missing, the graph is large, or
    the bound is reached.
    """
    instance, bound, until = race.instance, race.bound, race.until
    if not 0 < instance.clusters <= params.clusters or chosen.makespan <= bound * (
        1 + params.solver.tolerance
    ):
        return Proven(chosen)
    if not find_spec("ortools"):
        return Proven(chosen)
    if time.monotonic() >= until:
        return Proven(chosen, cut=True)
    schedule, proven, cut = chosen.schedule, bound, False
    gap = _above(chosen.makespan, bound)
    steps = proofs(instance, schedule, params.solver, budget_s=left(until), bound=proven)
    for step, found in enumerate(steps):
        schedule, proven = found.schedule, found.lower_bound
        before, gap = gap, _above(found.makespan, proven)
        if (
            found.optimal
            or gap <= params.close
            or (step and gap > params.near and gap > before * params.nearer)
        ):
            break
        cut = found.stopped
    if schedule is not chosen.schedule:
        race.enter(schedule)
    longest = race.best().makespan
    served = not instance.costed.machine.queued
    if served and not race.complete and longest > proven * (1 + params.solver.tolerance):
        cut = cut or time.monotonic() >= until
        for other in () if cut else held(instance, schedule, longest, proven, params.held, until):
            race.enter(other)
    return Proven(race.best(), proven, cut)


def _above(makespan: float, bound: float) -> float:
    return makespan / bound - 1 if bound else math.inf


def left(until: float) -> float | None:
    """Seconds until a time of the monotonic clock; None for no such time."""
    return None if until == math.inf else max(0.0, until - time.monotonic())
