"""Prove a small plan the shortest, or find a shorter one, where OR-tools is installed.

First a short effort, half a second of a core, which proves most graphs of this size; then one for what must come before
and after each run. Longer ones are made only while a proof is near (`NEAR`) or comes nearer: elsewhere more seconds
rarely prove anything. Efforts are counted by the solver's deterministic clock: a ceiling in seconds may end them early,
and never makes them longer.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec

from ..simulate import Schedule
from .exact import TOLERANCE, held, proofs
from .race import Entry, Race

RUNS = 60
"""Runs of the largest graph that is worth the effort."""
HELD = 0.15
"""Effort spent on schedules whose wires serve first come, first served."""
LONG = 2.0
"""Effort spent in all at most: up to some twenty seconds of a core."""
NEAR = 0.05
"""Share by which the shortest schedule may be above its bound for a further effort."""
CLOSE = 2e-3
"""The same that is left as it is: what is within it costs as much to prove as all before."""
NEARER = 2 / 3
"""What an effort may leave of that share, or less, for a further one where a proof is not near."""


def prove(race: Race, chosen: Entry, bound: float, until: float) -> tuple[Entry, float]:
    """The shortest plan found, and a bound that holds for plans that do every run once (0: none sought), in seconds.

    `until` is a time of the monotonic clock. Nothing is tried where OR-tools is missing, the graph is large, or `bound`
    is reached.
    """
    problem = race.problem
    if not 0 < problem.runs <= RUNS or chosen.makespan <= bound * (1 + TOLERANCE):
        return chosen, 0.0
    if time.monotonic() >= until or not find_spec("ortools"):
        return chosen, 0.0
    schedule, proven = chosen.schedule, bound
    gap = _above(chosen.makespan, bound)
    steps = proofs(problem, schedule, effort=LONG, budget_s=left(until), bound=proven)
    for step, found in enumerate(steps):
        schedule, proven = found.schedule, found.lower_bound
        before, gap = gap, _above(found.makespan, proven)
        if found.optimal or gap <= CLOSE or (step and gap > NEAR and gap > before * NEARER):
            break
    return _kept(race, chosen, schedule, proven, until), proven


def _kept(race: Race, chosen: Entry, schedule: Schedule, proven: float, until: float) -> Entry:
    """The shortest plan once the race knows a schedule, and what comes near it without holding copies back."""
    if schedule is not chosen.schedule:
        race.enter(schedule)
        chosen = race.best()
    served = not race.problem.costed.machine.queued
    if served and chosen.makespan > proven * (1 + TOLERANCE) and time.monotonic() < until:
        sought = held(race.problem, schedule, chosen.makespan, proven, effort=HELD, budget_s=left(until))
        for other in sought:
            race.enter(other)
    return race.best()


def _above(makespan: float, bound: float) -> float:
    return makespan / bound - 1 if bound else math.inf


def left(until: float) -> float | None:
    """Seconds until a time of the monotonic clock; None for no such time."""
    return None if until == math.inf else max(0.0, until - time.monotonic())
