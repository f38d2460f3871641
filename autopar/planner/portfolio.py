"""Choose a plan: race the policies, improve the best a little, and say why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ..errors import PlanError
from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..ir.sound import sound
from ..text.tables import seconds
from .bounds import lower_bound
from .candidates import SHORTER, Entry, Race
from .duplication.originals import once
from .duplication.search import repeated
from .every import every
from .identical import alike, identical
from .lists.fill import fill
from .lists.follow import follow
from .lists.heft import heft, list_schedule, lookahead
from .lists.ranking import urgent_first
from .lists.round_robin import round_robin
from .lists.single import is_single, single
from .lists.weighted_lists import LARGE, crowded, quickest, variants
from .model.orders import kept
from .model.problem import Problem
from .model.simulator import Schedule
from .model.timing import timing
from .prove import prove
from .reasons.placement import Reasons
from .search.anneal import anneal, polish
from .search.descent import improve
from .search.multilevel import coarse
from .search.packed import pack
from .search.repair import squeeze

Policy: TypeAlias = str | Callable[[CostedGraph], Schedule | Mapping[str, str]]
"""`auto`, the name of a policy, or a function to a schedule, or to the device of some runs or tasks by
name."""

POLICIES: dict[str, Callable[..., Schedule]] = {
    "heft": heft,
    "heft+lookahead": lookahead,
    "fill": fill,
    "follow": follow,
    "round_robin": round_robin,
}
"""Policies by name, beside `auto` and `single`: one added here can be asked for."""

RACE = ("heft", "heft+lookahead")
"""What `auto` tries against everything on one device; these take `room`, the share of the caps to plan
for."""

TIGHTER = (0.9, 0.75, 0.5)
"""Shares of the caps to plan for, in turn, when a schedule does not fit for being quicker than it was
planned."""
TIGHTEST = (*TIGHTER, 0.4, 0.3, 0.2)
"""The same for policies that lay runs by the room there is: what is remembered is spread over devices by it, so that
a small share leaves room on each for what comes of that later."""
HOPELESS = 8
"""Times its cap that a device would need for no tighter plan of a policy to be tried: its order does not go with
short memory, and less room would not mend that."""

ALONE = 0.25
"""Share of a ceiling in seconds after which no further device is tried alone: the rest is for better plans."""

ENDING = 0.06
"""Share of a ceiling in seconds for what is under way when the rest of it is spent."""

QUICK = 40_000
"""Steps of `anneal` where a plan is one of many tried, as for a captured model."""


def place(
    costed: CostedGraph,
    policy: Policy = "auto",
    budget_s: float | None = None,
    steps: int = QUICK,
    copies: bool = False,
) -> Plan:
    """The best plan that `policy` finds for a costed graph, simulated, with its bound and its reasons.

    `auto` races everything on one device against the policies of `RACE`, or on a large graph `variants`, and what
    `anneal` finds in `steps` placed runs, or `pack` where that does not fit, and then improves the winner; where all
    lanes are alike, `identical` searches instead. A plan over several devices is chosen only when it is predicted to
    be shorter than the best on one. With `copies` it may compute runs on several devices: the plan is then one of the
    graph with these copies (`CostedGraph.again`). Shortly before `budget_s` seconds (`ENDING`) the search ends, and the
    plan says `stopped: time`. Raises PlanError for an unknown policy or name and MemoryCapError when nothing fits.
    """
    began = time.monotonic()
    until = math.inf if budget_s is None else began + budget_s * (1 - ENDING)
    problem = Problem(costed)
    race = Race(problem)
    bound = lower_bound(problem)
    wide = policy == "auto" and problem.runs > LARGE and not problem.tight
    alone = _singles(race, strict=wide, until=began + (until - began) * ALONE)
    stopped, apart = "", 0.0
    if policy == "auto":
        _enter_all(race, bound, steps, until, wide)
        chosen = race.best()
        if copies:
            chosen, apart, stopped = _repeated_and_proven(race, chosen, bound, until)
        if time.monotonic() > until:
            stopped = "time"
    else:
        chosen = race.best(_asked(race, policy, alone))
    return _plan(race, chosen, bound, alone, stopped, apart)


def _enter_all(race: Race, bound: float, steps: int, until: float, wide: bool) -> None:
    """Enter what policies, searches and small changes of the best lead to; `wide` graphs are too large for some."""
    problem = race.problem
    lanes = alike(problem)
    found = race.enter(identical(problem, lanes, bound, until)) if lanes else None
    tried: list[Callable[..., Schedule]] = [POLICIES[name] for name in RACE]
    if wide and found:
        tried = [heft]
    elif wide and crowded(problem):
        tried = [partial(quickest, until=until)]
    elif wide:
        tried = [*variants(problem).values()]
    short = problem.tight
    if short and problem.runs > LARGE:
        # In the order of placing much counts as held that is long gone by then: without caps it may well fit.
        loose = race.enter(quickest(problem, until) if crowded(problem) else heft(problem, room=math.inf))
        if loose and not loose.over:
            short, tried = False, [partial(lookahead, room=math.inf)]
    if found and found.makespan <= bound * (1 + SHORTER):
        tried = []
    for own in (*tried, *((fill, follow) if short else ())):
        if time.monotonic() > until:
            break
        enter_fitting(race, own)
    if not lanes:
        _search(race, bound, steps, until)
    leader = race.leading()
    if leader is None or leader.over or leader.makespan > bound * (1 + SHORTER):
        every(race, leader, bound)
        leader = race.leading()
    if leader and leader.over and squeeze(race, steps, until):
        pack(race, bound, steps, until)
        leader = race.leading()
    if leader and time.monotonic() <= until:
        improve(race, leader, bound)


def _repeated_and_proven(race: Race, found: Entry, bound: float, until: float) -> tuple[Entry, float, str]:
    """The shortest plan, which may have copies, a bound for those that have none, and what stopped the search for
    them. Copies come first, for they are soon found, and a proof may take whatever time there is."""
    plans = [found, repeated(race, found, bound, until)]
    proven = prove(race, found, bound, until)
    if proven.entry is not found:
        plans += [proven.entry, repeated(race, proven.entry, bound, until)]
    best = min(plans, key=lambda plan: plan.makespan)
    # Searches for plans with copies may come to shorter ones that have none.
    least = min(plan.makespan for plan in plans if not plan.play.problem.costed.again)
    return best, sound(proven.bound, least), "time" if proven.cut else ""


def _search(race: Race, bound: float, steps: int, until: float) -> None:
    """Enter what the searches find."""
    problem = race.problem
    found = anneal(problem, bound, steps, until)
    entries = [race.enter(schedule) for schedule in found]
    leader = race.leading()
    if leader:
        more = coarse(problem, bound, leader.makespan, steps, until)
        if not found:
            more += polish(problem, bound, leader.play, steps, until)
        for schedule in more:
            race.enter(schedule)
    if any(entry and entry.over for entry in entries):
        pack(race, bound, steps, until)


def replan(costed: CostedGraph, edited: Plan, budget_s: float | None = None) -> Plan:
    """An edited plan with new times: which run is on which lane, and in which order, is taken from `edited`. After
    `budget_s` seconds no further device is tried alone.

    Raises PlanError for runs, devices or lanes that `costed` does not have, for orders that can never end,
    and MemoryCapError when it does not fit.
    """
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    problem = Problem(costed)
    race = Race(problem)
    alone = _singles(race, until=until)
    for step in edited.placed:
        costed.machine.require(step.device)
        if step.lane not in costed.machine.device[step.device].compute_lanes:
            raise PlanError(
                f"the plan places run {step.run!r} on lane {step.lane!r} of {step.device}; "
                f"its compute lanes are {', '.join(costed.machine.device[step.device].compute_lanes)}"
            )
    given = kept(replace(edited, costed=costed, policy="the plan given"))
    as_it_was = race.trial(given)
    if as_it_was:
        race.admit(as_it_was)
    # Where runs have moved, other values do: the copy queues then take them as they become ready.
    entry = as_it_was or race.enter(replace(given, copies={}))
    if entry is None:
        raise race.errors[-1]
    # Of the graph itself, where what is given computes runs again.
    bound = lower_bound(Problem(once(costed)) if costed.again else problem)
    return _plan(race, race.best([entry]), bound, alone)


def _singles(race: Race, strict: bool = False, until: float = math.inf) -> dict[int, list[Entry]]:
    """Everything on each device in turn, as far as that is possible; if `strict`, only where it is. That of least work
    comes first, and the others only until `until`, a time of the monotonic clock."""
    alone: dict[int, list[Entry]] = {}
    work = [sum(row[d] for row in race.problem.seconds) for d in range(len(race.problem.devices))]
    for d in sorted(range(len(work)), key=work.__getitem__):
        if (strict and not is_single(race.problem, d)) or (race.entries and time.monotonic() > until):
            alone[d] = []
            continue
        entries = [race.enter(schedule) for schedule in single(race.problem, d)]
        alone[d] = [entry for entry in entries if entry]
    return alone


def enter_fitting(race: Race, policy: Callable[..., Schedule]) -> Entry | None:
    """The entry of a policy, planned for less room while it does not fit and that may help."""
    entry = race.enter(policy(race.problem))
    for room in TIGHTEST if policy in (fill, follow) else TIGHTER:
        if entry is None or not entry.over or any(peak > HOPELESS * cap for _, peak, cap in entry.over):
            break
        schedule = policy(race.problem, room=room)
        if (schedule.lanes, schedule.copies) != (entry.schedule.lanes, entry.schedule.copies):
            entry = race.enter(schedule) or entry
    return entry


def require_policy(policy: Policy, devices: Collection[str]) -> None:
    """Raise PlanError for the name of a policy that there is not on these devices."""
    known = ("auto", "single", *(f"single {name}" for name in devices), *POLICIES)
    if isinstance(policy, str) and policy not in known:
        raise PlanError(
            f"policy={policy!r} is not known; give one of {', '.join(known)}, or a function of the costed graph"
        )


def _asked(race: Race, policy: Policy, alone: dict[int, list[Entry]]) -> list[Entry]:
    """The entries of one policy."""
    problem = race.problem
    if not isinstance(policy, str):
        given = policy(problem.costed)
        if isinstance(given, Schedule):
            entry = race.enter(given)
            if entry is None:
                raise race.errors[-1]
            return [entry]
        if not isinstance(given, Mapping):
            raise PlanError(
                f"policy= returned {given!r}; a policy returns {{name of a task or run: device}} or a Schedule"
            )
        allowed = _by_name(problem, given)

        def rest(problem: Problem, room: float = 1.0) -> Schedule:
            name = getattr(policy, "title", "the policy given")
            return list_schedule(problem, name, urgent_first(problem, allowed), allowed=allowed, room=room)

        found = enter_fitting(race, rest)
    elif policy == "single":
        strict = [entry for d, entries in alone.items() if is_single(problem, d) for entry in entries]
        return strict or [entry for entries in alone.values() for entry in entries]
    elif policy.startswith("single ") and policy[7:] in problem.devices:
        return alone[problem.devices.index(policy[7:])]
    elif policy in (*RACE, "fill", "follow"):
        found = enter_fitting(race, POLICIES[policy])
    else:
        require_policy(policy, problem.devices)
        found = race.enter(POLICIES[policy](problem))
    if found is None:
        raise race.errors[-1]
    return [entry for entry in race.entries if entry.schedule.policy == found.schedule.policy]


def _by_name(problem: Problem, given: Mapping[str, str]) -> list[tuple[int, ...]]:
    """The devices each run may go to under a mapping from runs or tasks to devices."""
    costed = problem.costed
    allowed = list(problem.allowed)
    by: dict[int, str] = {}
    for name, device in given.items():
        costed.machine.require(device)
        r = problem.number.get(name, problem.number.get(costed.run_of.get(name, ""), -1))
        if r < 0:
            raise PlanError(f"the policy places {name!r}, which is no run or task of {costed.graph.name!r}")
        d = costed.index[device]
        if d not in problem.allowed[r]:
            raise PlanError(f"the policy puts {name!r} on {device}; it can only run on {problem.where(r)}")
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else [r]
        for member in together:
            if allowed[member] != (d,) and member in by:
                raise PlanError(
                    f"the policy puts {name!r} on {device} and {by[member]!r} elsewhere, but they are "
                    "executed together; give both the same device"
                )
            allowed[member] = (d,)
            by[member] = name
    return allowed


def _plan(
    race: Race,
    chosen: Entry,
    bound: float,
    alone: dict[int, list[Entry]],
    stopped: str = "",
    apart: float = 0.0,
) -> Plan:
    problem, found = chosen.play.problem, timing(chosen.play)
    singles = []
    for d, device in enumerate(problem.devices):
        fitting = [entry.makespan for entry in alone[d] if not entry.over]
        singles.append((device, min(fitting) if fitting and is_single(race.problem, d) else None))
    several = [entry.makespan for entry in race.entries if not entry.over and len(set(entry.play.device)) > 1]
    shortest = all(entry.over or entry.makespan >= found.makespan * (1 - SHORTER) for entry in race.entries)
    others = ""
    if several:
        times = seconds(min(several)), seconds(found.makespan)
        others = f"the best plan found over several devices would take {times[0]}, this one {times[1]}"
    # What raced and lost refutes a bound as well as the plan does, which `Plan` sees to.
    least = min((entry.makespan for entry in race.entries if not entry.over), default=found.makespan)
    if all(entry is not chosen for entry in race.entries):
        # With copies of runs, or copies held back, it is none of those that raced, but is to be seen beside them.
        race.admit(chosen)
    return Plan(
        costed=problem.costed,
        policy=chosen.schedule.policy,
        placed=found.placed,
        transfers=found.transfers,
        resident=found.resident,
        memory=found.memory,
        makespan=found.makespan,
        lower_bound=sound(bound, least),
        singles=tuple(singles),
        candidates=tuple(race.candidates),
        reasons=Reasons(problem.costed, found, chosen.schedule.policy, shortest, others),
        stopped=stopped,
        bound_once=apart,
    )
