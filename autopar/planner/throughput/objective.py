"""Plans for successive calls without a pause: the least period instead of the least makespan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import MemoryCapError
from ...ir.costed import Cluster, CostedGraph
from ...ir.plan import Plan, Reason
from ...ir.timeline import Placed
from ...system.text import seconds
from ..bounds.critical_path import Paths, durations
from ..bounds.load import evenly, load
from ..bounds.traffic import traffic
from ..exact import left
from ..model.instance import Instance
from ..portfolio import place, replan
from ..reasons import LazyReasons
from .balance import balance
from .loads import Loads, Standing, busiest, loads_of, share

POLICY = "throughput"
"""Policy name of plans chosen for the period."""
TRIED = 16
"""Number of periods tried, from the shortest to the makespan, before bisection."""
HALVES = 8
"""Bisection steps towards the first period that fits: to 1/256 of the interval."""
TICKS = 10**12
"""Ticks of a period: a step that ends as another begins, within rounding, counts as ended."""
NEGLIGIBLE = 1e-9
"""Share of the period that is too small for a reason."""
NAMED = 3
"""Limit on the devices named for one outcome."""
ROOM = (1.0, 0.8, 0.6)
"""Shares of the caps to balance for, in turn, while the calls in flight do not fit."""


def throughput(costed: CostedGraph, budget_s: float | None = None) -> Plan:
    """Return the plan with the least period found, in seconds, at which calls can start indefinitely.

    In a pipeline's steady state, each call is at a different stage, so only loads count: `period` is the
    seconds that one call takes of the busiest lane, bus or queue, or of the host's dispatch. The plan's steps
    are one call, with the tasks of a device distributed over its lanes accordingly. A graph split into
    micro-batches is one call with all its parts. `lower_bound` is on the period.

    Under memory caps, state and the values of all calls in flight, each as in the plan, must fit; otherwise
    calls start further apart. If state is carried between calls, or nothing else fits, calls are sequential:
    the period is the makespan.

    Raises MemoryCapError if not even one call fits, PlanError for a graph that cannot be placed.
    """
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    options = [
        replace(costed, clusters=tuple(_narrow(cluster, quick) for cluster in costed.clusters))
        for quick in (False, True)
    ]
    if options[0].clusters == options[1].clusters:
        del options[1]
    problems = [Instance(option) for option in options]
    weighed = [(instance, loads_of(instance)) for instance in problems]
    proven = max(
        load_bound(problems[0]), evenly(problems[0]), _longest(problems[-1]), sum(problems[0].dispatch)
    )
    cut = False
    shortest, best = math.inf, None
    for room in ROOM if not costed.graph.carried else ():
        found = []
        for instance, loads in weighed:
            at, timed = balance(loads.within(room), until)
            cut = cut or timed
            if at is not None:
                found.append((Standing(loads, at).period, instance, loads, at))
        if not found:
            break
        _, instance, loads, at = min(found, key=lambda one: one[0])
        where = {
            instance.names[r]: instance.devices[d] for d, members in zip(at, loads.members) for r in members
        }
        try:
            plan = _shared_out(place(instance.costed, _given(where), left(until)), until)
        except MemoryCapError:
            continue
        least = max(busy(plan).values(), default=0.0)
        period = apart(plan, least)
        if period < shortest:
            shortest = period
            best = replace(
                plan,
                policy=POLICY,
                candidates=(),
                period=period,
                reasons=_reasons(instance, loads, at),
                lower_bound=proven,
                stopped="time" if cut else "",
            )
        if best and period == least:
            return best
        if cut:
            break
    plan = place(costed, budget_s=left(until))
    if best and shortest < plan.makespan:
        return best
    return replace(plan, period=plan.makespan, lower_bound=proven)


def _reasons(instance: Instance, loads: Loads, at: list[int]) -> LazyReasons:
    group = {r: g for g, members in enumerate(loads.members) for r in members}
    queues = [name if " → " in name else f"bus {name}" for name in instance.copy_lanes]
    called = [*instance.devices, *["a bus"] * instance.wires, *queues, "the host's dispatch"]
    of = [group[r] for r in range(instance.clusters)]
    return LazyReasons(instance.names, partial(reason_by_period, instance.names, of, loads, at, called))


def reason_by_period(
    names: Sequence[str], group: Sequence[int], loads: Loads, at: Sequence[int], called: Sequence[str]
) -> Callable[[int], Reason]:
    """Return a function from a cluster's number to its reason: the maximum load with the cluster and its `group` on
    each other device, all else unchanged.

    `at`: device of each group in the plan. `called`: names of the resources of `loads`.
    """
    standing = Standing(loads, at)
    was = standing.period

    def reason(r: int) -> Reason:
        g, own = group[r], at[group[r]]
        if loads.devices == 1:
            return Reason(names[r], f"{called[own]} is the only device there is.")
        if loads.allowed[g] == (own,):
            return Reason(names[r], f"It can only run on {called[own]}.")
        ends: dict[str, tuple[float, list[str]]] = {}
        for d in loads.allowed[g]:
            if d == own:
                continue
            standing.move(g, d)
            period, what = math.inf, "no room"
            if standing.lost:
                what = "no link joins it to its values"
            elif standing.over <= 0:
                period, load = standing.period, standing.load
                busiest = max(range(len(load)), key=load.__getitem__)
                which = "" if busiest == d else f" ({called[busiest]} busy)"
                longer = period > was * (1 + NEGLIGIBLE)
                what = f"{seconds(period)}{which}" if longer else "no longer"
            ends.setdefault(what, (period, []))[1].append(called[d])
            standing.move(g, own)
        return Reason(names[r], listed("period", ends))

    return reason


def listed(what: str, ends: Mapping[str, tuple[float, Sequence[str]]]) -> str:
    """Return a sentence on the alternatives of a placement, the shortest first.

    Example: `The period would be 3.1 s on cpu. Not on gpu:0, gpu:1 and 3 more: no room.`
    `ends`: for each outcome its seconds (inf: infeasible; its name says why) and the devices.
    """
    parts, text = [], ""
    for how, (took, names) in sorted(ends.items(), key=lambda end: end[1][0]):
        few = names if len(names) <= NAMED else [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
        joined = few[0] if len(few) == 1 else f"{', '.join(few[:-1])} and {few[-1]}"
        if took < math.inf:
            parts.append(f"{how} on {joined}")
        else:
            text += f" Not on {joined}: {how}."
    return ((f"The {what} would be {'; '.join(parts)}." if parts else "") + text).strip()


def _given(where: dict[str, str]) -> Callable[[CostedGraph], dict[str, str]]:
    return lambda costed: where


def _shared_out(plan: Plan, until: float) -> Plan:
    """Distribute the tasks of each device of a plan over its lanes, if that is better and fits."""
    steps: dict[str, list[Placed]] = {}
    for step in plan.placed:
        steps.setdefault(step.device, []).append(step)
    was = busy(plan)
    lanes: dict[str, tuple[str, ...]] = {}
    for device, own in steps.items():
        names = plan.costed.machine.device[device].compute_lanes
        parts = [(step.end - step.start, len(step.lanes)) for step in own]
        if busiest(sorted((-took, -wide) for took, wide in parts), len(names)) < max(
            was[n] for n in names if n in was
        ):
            shared = share(parts, len(names))
            lanes.update((step.cluster, tuple(names[n] for n in taken)) for step, taken in zip(own, shared))
    if not lanes:
        return plan
    placed = []
    for step in plan.placed:
        lane, *more = lanes.get(step.cluster, step.lanes)
        placed.append(replace(step, lane=lane, more=tuple(more)))
    try:
        return replan(plan.costed, replace(plan, placed=tuple(placed)), left(until))
    except MemoryCapError:
        return plan


def busy(plan: Plan) -> dict[str, float]:
    """Return the busy seconds of a call for each lane, queue and bus of a plan, and for the host."""
    machine = plan.costed.machine
    found = {"dispatch": sum(cluster.dispatch_s for cluster in plan.costed.clusters)}
    for step in plan.placed:
        for lane in step.lanes:
            found[lane] = found.get(lane, 0.0) + step.end - step.start
    for t in plan.transfers:
        link = machine.link[t.src, t.dst]
        queue = machine.queue(link)
        shared = {f"queue {queue}"} if queue is not None else set()
        if machine.queued and link.wire is not None:
            shared.add(f"wire {link.wire}")
        for name in sorted(shared):
            found[name] = found.get(name, 0.0) + t.end - t.start
    return found


def _narrow(cluster: Cluster, quick: bool) -> Cluster:
    """Restrict a cluster to one mode on each device: the one with the least lanes × seconds, since other
    calls fill the lanes; or, if `quick`, the fastest, in case that one takes longer than all else."""
    if not cluster.modes:
        return cluster
    best: dict[int, tuple[float, int, float]] = {}
    for d, lanes, took in cluster.modes:
        best[d] = min(best.get(d, (math.inf, 0, 0.0)), (took if quick else lanes * took, lanes, took))
    seconds = tuple(best[d][2] if d in best else s for d, s in enumerate(cluster.seconds))
    modes = tuple((d, lanes, took) for d, (_, lanes, took) in sorted(best.items()))
    return replace(cluster, seconds=seconds, modes=modes)


def _longest(instance: Instance) -> float:
    """Return the seconds of the longest cluster in its fastest mode, which occupies a lane for that long."""
    return max(
        (min(instance.seconds[r][d] for d in instance.able[r]) for r in range(instance.clusters)), default=0.0
    )


def load_bound(instance: Instance) -> float:
    """Return the lower bound in seconds from the load of devices, buses and memory, without precedence."""
    if not instance.clusters:
        return 0.0
    lasting = durations(instance)
    none = np.zeros_like(lasting)
    paths = Paths(none, none, lasting, 0.0)
    shared = load(instance, paths)
    return traffic(instance, paths, shared, shared[0])


def apart(plan: Plan, least: float) -> float:
    """Return the least period found, from `least` to the makespan, in seconds, at which caps hold."""
    if fits(plan, least):
        return least
    short, long = least, plan.makespan
    for step in range(1, TRIED):
        period = least * (plan.makespan / least) ** (step / TRIED)
        if fits(plan, period):
            long = period
            break
        short = period
    for _ in range(HALVES):
        middle = (short + long) / 2
        short, long = (short, middle) if fits(plan, middle) else (middle, long)
    return long


def fits(plan: Plan, period: float) -> bool:
    """Return True if caps hold with a call started every `period` seconds as planned. O(n log n) for n changes."""
    if period <= 0:
        return True
    for memory in plan.memory:
        if memory.cap is None:
            continue
        base = min((level for _, level in memory.steps), default=0)
        changes: list[tuple[int, int]] = []
        always = base
        for (start, level), (end, _) in zip(memory.steps, (*memory.steps[1:], (plan.makespan, 0))):
            begin = round(start / period * TICKS)
            whole, rest = divmod(max(0, round(end / period * TICKS) - begin), TICKS)
            begin %= TICKS
            # Bytes still held when the next call starts are held at the start of every call.
            wraps = begin + rest > TICKS
            always += (whole + wraps) * (level - base)
            changes += [(begin, level - base), (begin + rest - wraps * TICKS, base - level)]
        peak = always
        for _, change in sorted(changes):
            always += change
            peak = max(peak, always)
        if peak > memory.cap:
            return False
    return True
