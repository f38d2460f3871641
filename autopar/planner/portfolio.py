"""Algorithm portfolio: strategies race, and the shortest plan that fits wins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from ..errors import PlanError, TooLongError
from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..ir.plan_check import sound_bound
from ..system.text import seconds
from .bounds import lower_bound
from .candidates import Entry, Race
from .lists.heft import heft, lookahead
from .lists.memory_first import fill_devices, follow_data
from .lists.single import is_single, single
from .model.instance import Instance
from .model.simulator import Schedule, schedule_of
from .model.timing import timing
from .policies import Policy, enter_fitting, enter_policy
from .search.anneal import POLICY, anneal, pack, refine
from .search.large import LARGE, contended, non_delay_list, weighted

SINGLES = 0.25
"""Share of the time limit after which no further single device is tried."""

ENDING = 0.06
"""Share of the time limit reserved for work in progress at its end."""

QUICK = 40_000
"""Steps of `anneal` if the plan is one of many, as for a captured model."""


def _small(race: Race) -> bool:
    return race.instance.clusters <= LARGE


def _searched(race: Race) -> list[Entry]:
    """Return the entries of annealing."""
    return [entry for entry in race.entries if entry.simulation.schedule.policy == POLICY]


def _lists(race: Race, *policies: Callable[..., Schedule]) -> None:
    """Enter the schedule of each policy, as long as there is time."""
    for policy in policies:
        if not race.late:
            enter_fitting(race, policy)


def _weighted(race: Race, _: int) -> None:
    """Enter list schedules under several weights; if they contend for buses, simulate only the best."""
    if contended(race.instance):
        race.enter(non_delay_list(race.instance, race.until))
    else:
        _lists(race, *weighted(race.instance).values())


def _uncapped(race: Race, _: int) -> None:
    """Enter list schedules without caps, and with caps only if those do not fit.

    With caps, list schedules overestimate memory: in the order of placement, values seem to be alive that are
    freed by then.
    """
    instance = race.instance
    loose = race.enter(
        non_delay_list(instance, race.until) if contended(instance) else heft(instance, room=math.inf)
    )
    if loose and not loose.over:
        race.enter(lookahead(instance, room=math.inf))
    else:
        _lists(race, heft, lookahead, fill_devices, follow_data)


def _anneal(race: Race, steps: int) -> None:
    for schedule in anneal(race.instance, race.bound, steps, race.until):
        race.enter(schedule)


def _refine(race: Race, steps: int) -> None:
    for schedule in refine(race.instance, race.bound, race.leader().simulation, steps, race.until):
        race.enter(schedule)


STRATEGIES: tuple[tuple[Callable[[Race], bool], Callable[[Race, int], object]], ...] = (
    (_small, lambda race, _: _lists(race, heft, lookahead)),
    (
        lambda race: _small(race) and race.instance.tight,
        lambda race, _: _lists(race, fill_devices, follow_data),
    ),
    (lambda race: not (_small(race) or race.instance.tight), _weighted),
    (lambda race: not _small(race) and race.instance.tight, _uncapped),
    (lambda race: True, _anneal),
    (lambda race: not _searched(race), _refine),
    (lambda race: bool(race.leader().over) or any(entry.over for entry in _searched(race)), pack),
)
"""Strategies that `auto` races, in this order, as long as there is time: the races that each supports, and the function
that enters its schedules in about a number of steps."""


def place(
    costed: CostedGraph,
    policy: Policy = "auto",
    budget_s: float | None = None,
    steps: int = QUICK,
    below: float = math.inf,
) -> Plan:
    """Return the best plan that `policy` finds for a costed graph, simulated, with its bound and reasons.

    `auto` races single devices against `STRATEGIES`, each with about `steps` placed clusters. A plan over
    several devices wins only if predicted to be shorter than the best single one. The search ends shortly before
    `budget_s` seconds (`ENDING`); the plan then says `stopped: time`. Raises PlanError for an unknown policy or name,
    MemoryCapError if nothing fits, TooLongError if none takes less than `below` seconds.
    """
    began = time.monotonic()
    until = math.inf if budget_s is None else began + budget_s * (1 - ENDING)
    instance = Instance(costed)
    race = Race(instance, lower_bound(instance, below), until)
    if below <= race.bound < math.inf:
        raise TooLongError(f"no plan takes less than {seconds(race.bound)}")
    wide = policy == "auto" and instance.clusters > LARGE and not instance.tight
    singles = _singles(race, strict=wide, until=began + (until - began) * SINGLES)
    if policy != "auto":
        return _plan(race, race.best(enter_policy(race, policy, singles)), singles)
    for supports, run in STRATEGIES:
        if race.entries and (race.late or race.done):
            break
        if supports(race):
            run(race, steps)
    return _plan(race, race.best(), singles, "time" if race.late else "")


def replan(costed: CostedGraph, edited: Plan, budget_s: float | None = None) -> Plan:
    """Simulate an edited plan: lanes and orders of clusters are those of `edited`, times are new.

    After `budget_s` seconds no further single device is tried. Raises PlanError for unknown clusters, devices or lanes
    and for orders that deadlock, MemoryCapError if it does not fit.
    """
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    instance = Instance(costed)
    race = Race(instance, lower_bound(instance))
    singles = _singles(race, until=until)
    for step in edited.placed:
        costed.machine.require(step.device)
        if step.lane not in costed.machine.device[step.device].compute_lanes:
            raise PlanError(
                f"the plan places cluster {step.cluster!r} on lane {step.lane!r} of {step.device}; "
                f"its compute lanes are {', '.join(costed.machine.device[step.device].compute_lanes)}"
            )
    schedule = schedule_of(replace(edited, costed=costed, policy="the plan given"))
    entry = race.trial(schedule)
    if entry:
        race.admit(entry)
    else:
        # If clusters have moved, other values are transferred: copy queues serve these as they become ready.
        entry = race.enter(replace(schedule, copies={}))
    if entry is None:
        raise race.errors[-1]
    return _plan(race, race.best([entry]), singles)


def _singles(race: Race, strict: bool = False, until: float = math.inf) -> dict[int, list[Entry]]:
    """Enter everything on each device in turn; with `strict`, only on devices that can run everything.

    The device with the least work comes first, the others only until `until`, a time of the monotonic clock.
    """
    singles: dict[int, list[Entry]] = {}
    work = [sum(row[d] for row in race.instance.seconds) for d in range(len(race.instance.devices))]
    for d in sorted(range(len(work)), key=work.__getitem__):
        if (strict and not is_single(race.instance, d)) or (race.entries and time.monotonic() > until):
            singles[d] = []
            continue
        entries = [race.enter(schedule) for schedule in single(race.instance, d)]
        singles[d] = [entry for entry in entries if entry]
    return singles


def _plan(race: Race, chosen: Entry, singles: dict[int, list[Entry]], stopped: str = "") -> Plan:
    instance, plan = race.instance, timing(chosen.simulation)
    alone = []
    for d, device in enumerate(instance.devices):
        fitting = [entry.makespan for entry in singles[d] if not entry.over]
        alone.append((device, min(fitting) if fitting and is_single(instance, d) else None))
    # A losing entry refutes a bound as well as the plan does; `Plan` itself checks only the latter.
    least = min((entry.makespan for entry in race.entries if not entry.over), default=plan.makespan)
    return replace(
        plan,
        lower_bound=sound_bound(race.bound, least),
        singles=tuple(alone),
        candidates=tuple(race.candidates),
        stopped=stopped,
    )
