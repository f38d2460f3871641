"""Choose a plan: strategies race, the shortest that fits wins; copies of clusters and proofs come last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import PlanError
from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..ir.plan_check import sound
from ..system.text import seconds
from .bounds import lower_bound
from .candidates import SHORTER, Entry, Race
from .duplication import once, repeated
from .every import every, tiny
from .lists.heft import heft, lookahead
from .lists.identical import identical
from .lists.memory_first import fill, follow
from .lists.single import is_single, single
from .model.instance import Instance
from .model.simulator import Schedule, kept
from .model.timing import timing
from .policies import Policy, asked, enter_fitting
from .prove import prove
from .reasons import reasons
from .search.anneal import POLICY, anneal, polish
from .search.climb import climb
from .search.large import LARGE, crowded, quickest, variants
from .search.packed import pack

ALONE = 0.25
"""Share of a ceiling in seconds after which no further device is tried alone: the rest is for better plans."""

ENDING = 0.06
"""Share of a ceiling in seconds for what is under way when the rest of it is spent."""

QUICK = 40_000
"""Steps of `anneal` where a plan is one of many tried, as for a captured model."""


@dataclass(frozen=True)
class _Strategy:
    """A way to find schedules of a problem that it `supports`, as the race stands: `run` enters them, in about so many
    steps."""

    name: str
    supports: Callable[[Race], bool]
    run: Callable[[Race, int], object]


def _small(race: Race) -> bool:
    return race.instance.clusters <= LARGE


def _searched(race: Race) -> list[Entry]:
    """The schedules found by annealing."""
    return [entry for entry in race.entries if entry.schedule.policy == POLICY]


def _lists(race: Race, *policies: Callable[..., Schedule]) -> None:
    """Enter what each of the policies comes to, as long as there is time."""
    for policy in policies:
        if not race.late:
            enter_fitting(race, policy)


def _weighted(race: Race, _: int) -> None:
    """Several lists, of which only the best is simulated where wires are crowded."""
    if crowded(race.instance):
        race.enter(quickest(race.instance, race.until))
    else:
        _lists(race, *variants(race.instance).values())


def _uncapped(race: Race, _: int) -> None:
    """Lists without a look at the caps: in the order of placing much counts as held that is long gone by then, so that
    they may well fit. Only where they do not, lists that keep them."""
    instance = race.instance
    loose = race.enter(quickest(instance, race.until) if crowded(instance) else heft(instance, room=math.inf))
    if loose and not loose.over:
        race.enter(lookahead(instance, room=math.inf))
    else:
        _lists(race, heft, lookahead, fill, follow)


def _anneal(race: Race, steps: int) -> None:
    for schedule in anneal(race.instance, race.bound, steps, race.until):
        race.enter(schedule)


def _polish(race: Race, steps: int) -> None:
    for schedule in polish(race.instance, race.bound, race.lead.play, steps, race.until):
        race.enter(schedule)


def _repair(race: Race, steps: int) -> None:
    climb(race, steps)
    pack(race, steps)


STRATEGIES = (
    _Strategy("identical", lambda race: bool(race.instance.alike), lambda race, _: race.enter(identical(race))),
    _Strategy("lists", _small, lambda race, _: _lists(race, heft, lookahead)),
    _Strategy("lists by memory", lambda race: _small(race) and race.instance.tight,
             lambda race, _: _lists(race, fill, follow)),
    _Strategy("weighted lists", lambda race: not (_small(race) or race.instance.tight or race.instance.alike),
             _weighted),
    _Strategy("lists without caps", lambda race: not _small(race) and race.instance.tight, _uncapped),
    _Strategy("annealing", lambda race: True, _anneal),
    _Strategy("polish", lambda race: not _searched(race), _polish),
    _Strategy("packing", lambda race: any(entry.over for entry in _searched(race)), pack),
    _Strategy("all schedules", lambda race: tiny(race.instance) and not race.done, lambda race, _: every(race)),
    _Strategy("repair", lambda race: bool(race.lead.over), _repair),
    _Strategy("climb", lambda race: not race.lead.over, climb),
)  # fmt: skip
"""The strategies that `auto` races, in this order, as far as there is time."""


def place(
    costed: CostedGraph,
    policy: Policy = "auto",
    budget_s: float | None = None,
    steps: int = QUICK,
    copies: bool = False,
) -> Plan:
    """The best plan that `policy` finds for a costed graph, simulated, with its bound and its reasons.

    `auto` races everything on one device against what `STRATEGIES` find, each in about `steps` placed clusters. A plan
    over several devices is chosen only when it is predicted to be shorter than the best on one. With `copies` it may
    compute clusters on several devices: the plan is then one of the graph with these copies (`CostedGraph.again`).
    Shortly before `budget_s` seconds (`ENDING`) the search ends, and the plan says `stopped: time`. Raises PlanError
    for an unknown policy or name and MemoryCapError when nothing fits.
    """
    began = time.monotonic()
    until = math.inf if budget_s is None else began + budget_s * (1 - ENDING)
    instance = Instance(costed)
    race = Race(instance, lower_bound(instance), until)
    wide = policy == "auto" and instance.clusters > LARGE and not instance.tight
    alone = _singles(race, strict=wide, until=began + (until - began) * ALONE)
    if policy != "auto":
        return _plan(race, race.best(asked(race, policy, alone)), alone)
    for strategy in STRATEGIES:
        if race.entries and (race.late or race.done):
            break
        if strategy.supports(race):
            strategy.run(race, steps)
    chosen, apart, stopped = race.best(), 0.0, ""
    if copies:
        chosen, apart, stopped = _repeated_and_proven(race, chosen)
    return _plan(race, chosen, alone, "time" if race.late else stopped, apart)


def _repeated_and_proven(race: Race, found: Entry) -> tuple[Entry, float, str]:
    """The shortest plan, which may have copies, a bound for those that have none, and what stopped the search for
    them. Copies come first, for they are soon found, and a proof may take whatever time there is."""
    plans = [found, repeated(race, found)]
    proven, bound, cut = prove(race, found)
    if proven is not found:
        plans += [proven, repeated(race, proven)]
    best = min(plans, key=lambda plan: plan.makespan)
    # Searches for plans with copies may come to shorter ones that have none.
    least = min(plan.makespan for plan in plans if not plan.play.instance.costed.again)
    return best, sound(bound, least), "time" if cut else ""


def replan(costed: CostedGraph, edited: Plan, budget_s: float | None = None) -> Plan:
    """An edited plan with new times: which cluster is on which lane, and in which order, is taken from `edited`. After
    `budget_s` seconds no further device is tried alone.

    Raises PlanError for clusters, devices or lanes that `costed` does not have, for orders that can never end,
    and MemoryCapError when it does not fit.
    """
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    instance = Instance(costed)
    # Of the graph itself, where what is given computes clusters again.
    race = Race(instance, lower_bound(Instance(once(costed)) if costed.again else instance))
    alone = _singles(race, until=until)
    for step in edited.placed:
        costed.machine.require(step.device)
        if step.lane not in costed.machine.device[step.device].compute_lanes:
            raise PlanError(
                f"the plan places cluster {step.cluster!r} on lane {step.lane!r} of {step.device}; "
                f"its compute lanes are {', '.join(costed.machine.device[step.device].compute_lanes)}"
            )
    given = kept(replace(edited, costed=costed, policy="the plan given"))
    as_it_was = race.trial(given)
    if as_it_was:
        race.admit(as_it_was)
    # Where clusters have moved, other values do: the copy queues then take them as they become ready.
    entry = as_it_was or race.enter(replace(given, copies={}))
    if entry is None:
        raise race.errors[-1]
    return _plan(race, race.best([entry]), alone)


def _singles(race: Race, strict: bool = False, until: float = math.inf) -> dict[int, list[Entry]]:
    """Everything on each device in turn, as far as that is possible; if `strict`, only where it is. That of least work
    comes first, and the others only until `until`, a time of the monotonic clock."""
    alone: dict[int, list[Entry]] = {}
    work = [sum(row[d] for row in race.instance.seconds) for d in range(len(race.instance.devices))]
    for d in sorted(range(len(work)), key=work.__getitem__):
        if (strict and not is_single(race.instance, d)) or (race.entries and time.monotonic() > until):
            alone[d] = []
            continue
        entries = [race.enter(schedule) for schedule in single(race.instance, d)]
        alone[d] = [entry for entry in entries if entry]
    return alone


def _plan(
    race: Race, chosen: Entry, alone: dict[int, list[Entry]], stopped: str = "", apart: float = 0.0
) -> Plan:
    instance, found = chosen.play.instance, timing(chosen.play)
    singles = []
    for d, device in enumerate(instance.devices):
        fitting = [entry.makespan for entry in alone[d] if not entry.over]
        singles.append((device, min(fitting) if fitting and is_single(race.instance, d) else None))
    several = [entry.makespan for entry in race.entries if not entry.over and len(set(entry.play.device)) > 1]
    shortest = all(entry.over or entry.makespan >= found.makespan * (1 - SHORTER) for entry in race.entries)
    others = ""
    if several:
        times = seconds(min(several)), seconds(found.makespan)
        others = f"the best plan found over several devices would take {times[0]}, this one {times[1]}"
    # What raced and lost refutes a bound as well as the plan does, which `Plan` sees to.
    least = min((entry.makespan for entry in race.entries if not entry.over), default=found.makespan)
    if all(entry is not chosen for entry in race.entries):
        # With copies of clusters, or copies held back, it is none of those that raced, but is to be seen beside them.
        race.admit(chosen)
    return Plan(
        costed=instance.costed,
        policy=chosen.schedule.policy,
        placed=found.placed,
        transfers=found.transfers,
        resident=found.resident,
        memory=found.memory,
        makespan=found.makespan,
        lower_bound=sound(race.bound, least),
        singles=tuple(singles),
        candidates=tuple(race.candidates),
        reasons=reasons(instance.costed, found, chosen.schedule.policy, shortest, others),
        stopped=stopped,
        bound_once=apart,
    )
