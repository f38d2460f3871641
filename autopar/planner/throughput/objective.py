"""Placements for calls that follow each other without a pause: the smallest period instead of the shortest call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...errors import MemoryCapError
from ...ir.costed import CostedGraph, Run
from ...ir.plan import Plan
from ...ir.steps import Placed
from ..bounds.critical_path import Ways
from ..bounds.load import evenly, load
from ..bounds.traffic import traffic
from ..model.problem import Problem
from ..model.toposort import late
from ..portfolio import place, replan
from ..prove import left
from . import Hop, Loads, Value, balance, bound
from .in_flight import apart
from .lanes import Part, busiest, share
from .loads import Standing
from .reasons import Shares

ROOM = (1.0, 0.8, 0.6)
"""Shares of the caps to balance for, in turn, while what is in flight does not fit."""


def throughput(costed: CostedGraph, budget_s: float | None = None) -> Plan:
    """The plan of the smallest period found, in seconds: calls may begin that far apart for ever.

    In the steady state of a pipeline each call is at another stage, so that only how busy things are counts: `period`
    is the seconds in one call of the busiest lane, wire or queue, or of the host's dispatch. The plan's steps are one
    call, with the tasks of a device shared out to its lanes for that. A graph split into micro-batches is one call of
    all its parts. `lower_bound` is of the period.

    Memory caps hold for state and for what calls in flight keep, when each goes as in the plan; where these would be
    too many, calls begin further apart. Where state is carried from call to call, and where nothing else fits, they
    go one after the other: the period is the makespan.
    Raises MemoryCapError when not even one call fits, PlanError for a graph that cannot be placed.
    """
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    options = [
        replace(costed, runs=tuple(_narrow(run, quick) for run in costed.runs)) for quick in (False, True)
    ]
    if options[0].runs == options[1].runs:
        del options[1]
    problems = [Problem(option) for option in options]
    weighed = [(problem, *loads_of(problem)) for problem in problems]
    proven = max(
        bound(weighed[0][1]),
        _shared(problems[0]),
        evenly(problems[0]),
        _longest(problems[-1]),
        sum(problems[0].dispatch),
    )
    cut = False
    shortest, best = math.inf, None
    for room in ROOM if not costed.graph.carried else ():
        found = []
        for problem, loads, groups in weighed:
            at, timed = balance(loads.within(room), until)
            cut = cut or timed
            if at is not None:
                found.append((Standing(loads, at).period, problem, loads, groups, at))
        if not found:
            break
        _, problem, loads, groups, at = min(found, key=lambda one: one[0])
        where = {
            problem.names[r]: problem.devices[at[g]] for g, members in enumerate(groups) for r in members
        }
        try:
            plan = _shared_out(place(problem.costed, _given(where), left(until)), until)
        except MemoryCapError:
            continue
        least = max(busy(plan).values(), default=0.0)
        period = apart(plan, least)
        if period < shortest:
            shortest = period
            best = replace(
                plan,
                policy="throughput",
                candidates=(),
                period=period,
                reasons=_reasons(problem, loads, groups, at),
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


def _reasons(problem: Problem, loads: Loads, groups: list[list[int]], at: list[int]) -> Shares:
    group = {r: g for g, members in enumerate(groups) for r in members}
    queues = [name if " → " in name else f"wire {name}" for name in problem.copy_lanes]
    called = [*problem.devices, *["a wire"] * problem.wires, *queues, "the host's dispatch"]
    return Shares({problem.names[r]: group[r] for r in range(problem.runs)}, loads, at, called)


def _given(where: dict[str, str]) -> Callable[[CostedGraph], dict[str, str]]:
    return lambda costed: where


def _shared_out(plan: Plan, until: float) -> Plan:
    """A plan with the tasks of each device shared out to its lanes where that is better, if it then fits."""
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
            lanes.update((step.run, tuple(names[n] for n in taken)) for step, taken in zip(own, shared))
    if not lanes:
        return plan
    placed = []
    for step in plan.placed:
        lane, *more = lanes.get(step.run, step.lanes)
        placed.append(replace(step, lane=lane, more=tuple(more)))
    try:
        return replan(plan.costed, replace(plan, placed=tuple(placed)), left(until))
    except MemoryCapError:
        return plan


def busy(plan: Plan) -> dict[str, float]:
    """Seconds of a call that each lane, queue and wire of a plan, and the host, is busy."""
    machine = plan.costed.machine
    found = {"dispatch": sum(run.dispatch_s for run in plan.costed.runs)}
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


def _narrow(run: Run, quick: bool) -> Run:
    """A run with one way on each device: the one that costs least lanes times seconds, as there are other calls to
    fill the lanes; or the quickest, lest it take longer than all else."""
    if not run.modes:
        return run
    ways: dict[int, tuple[float, int, float]] = {}
    for d, lanes, took in run.modes:
        ways[d] = min(ways.get(d, (math.inf, 0, 0.0)), (took if quick else lanes * took, lanes, took))
    seconds = tuple(ways[d][2] if d in ways else s for d, s in enumerate(run.seconds))
    modes = tuple((d, lanes, took) for d, (_, lanes, took) in sorted(ways.items()))
    return replace(run, seconds=seconds, modes=modes)


def _longest(problem: Problem) -> float:
    """Seconds of the run that takes longest where and as it is quickest: its lane is busy for so long."""
    return max(
        (min(problem.seconds[r][d] for d in problem.able[r]) for r in range(problem.runs)), default=0.0
    )


def _shared(problem: Problem) -> float:
    """What the load of devices, wires and memory alone says, no run waiting for another, in seconds."""
    if not problem.runs:
        return 0.0
    seconds = np.array(problem.seconds).reshape(problem.runs, len(problem.devices))
    for r, allowed in enumerate(problem.able):
        seconds[r, [d for d in range(len(problem.devices)) if d not in allowed]] = np.inf
    none = np.zeros_like(seconds)
    ways = Ways(none, none, seconds, 0.0)
    shared = load(problem, ways)
    return traffic(problem, ways, shared, shared.seconds)


def loads_of(problem: Problem) -> tuple[Loads, list[list[int]]]:
    """The problem as loads, and the runs of each group."""
    devices = len(problem.devices)
    of = [-1] * problem.runs
    groups: list[list[int]] = []
    for r in range(problem.runs):
        if of[r] < 0:
            members = problem.members[problem.group[r]] if problem.group[r] >= 0 else [r]
            for member in members:
                of[member] = len(groups)
            groups.append(list(members))
    seconds, held, parts = [], [], []
    for members in groups:
        row = [0.0] * devices
        tasks: list[list[Part]] = [[] for _ in range(devices)]
        kept: dict[str, int] = {}
        made = 0
        for r in members:
            kept.update(problem.kept[r])
            made += sum(problem.bytes[v] for v in problem.makes[r])
            for d in range(devices):
                ways = problem.modes.get((r, d), ((1, problem.seconds[r][d]),))
                able = d in problem.able[r]
                lanes, took = ways[0]
                row[d] += lanes * took if able else math.inf
                tasks[d].append((took, lanes))
        seconds.append(row)
        parts.append(tasks)
        given = problem.given
        held.append([
            made + sum(nbytes for storage, nbytes in kept.items() if storage not in given[d]) for d in range(devices)
        ])  # fmt: skip
    scratch = max(problem.workspace, default=0)
    caps = [
        math.inf if cap is None else cap - sum(given.values()) - scratch
        for cap, given in zip(problem.caps, problem.given)
    ]
    values = []
    for v, readers in enumerate(problem.readers):
        maker = problem.maker[v]
        group = of[maker] if maker >= 0 else -1
        apart = problem.values[v] not in problem.holders
        if apart and (problem.deliver[v] or any(of[r] != group for r in readers)):
            reads = tuple(of[r] for r in readers)
            values.append(Value(problem.bytes[v], group, problem.home[v], reads, tuple(problem.deliver[v])))
    queues = devices + problem.wires
    last = queues + len(problem.copy_lanes)
    numbers: dict[tuple[int, int], int] = {}
    routes: list[list[tuple[Hop, ...] | None]] = []
    for ways_from in problem.route:
        found: list[tuple[Hop, ...] | None] = []
        for hops in ways_from:
            way = []
            for hop in hops or ():
                number = numbers.setdefault((hop.src, hop.dst), len(numbers))
                taken = [queues + hop.lane] if hop.lane >= 0 else []
                taken += [devices + hop.wire] if hop.wire >= 0 else []
                way.append(Hop(number, tuple(taken), hop.latency_s, hop.s_per_byte))
            found.append(None if hops is None else tuple(way))
        routes.append(found)
    widths = [len(names) for names in problem.lane_names]
    fixed = [0.0] * last + [sum(problem.dispatch)]
    rank = {r: place for place, r in enumerate(late(problem.before))}
    position = [float(min(rank[r] for r in members)) for members in groups]
    return Loads(seconds, widths, values, routes, last + 1, held, caps, position, fixed, parts), groups
