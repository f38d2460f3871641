"""Race of ways to split the batch: graph → split → cost → place for each candidate; the best plan wins."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..costs.clustering import unfused
from ..errors import MemoryCapError, PlanError, TooLongError
from ..ir.costed import CostedGraph
from ..ir.graph import SUM, Graph
from ..ir.machine import Machine
from ..ir.plan import Candidate, Plan
from ..planner import Policy, place
from ..system.text import percent, seconds
from ..transform.batch_axis import batch_of
from ..transform.buckets import bucketed
from ..transform.feature_split import Price, feature_cuts
from ..transform.rematerialize import recomputed
from ..transform.rewrites import with_own_views
from ..transform.row_sums import single_valued, summed
from ..transform.split import allot, allot_within_caps, even, shares, split
from .options import Options

log = logging.getLogger("autopar")

Split: TypeAlias = str | int | Mapping[str, float] | None

LARGEST_SPLIT_GRAPH = 30_000
"""Limit on the tasks of a split graph that `auto` tries, so that planning takes seconds."""
WORTH = 0.03
"""Share by which a plan over several devices must be shorter than the best single device: predictions are no more
precise."""
WORTH_APART, APART_S = 0.1, 3e-4
"""The same share with real accelerators, plus seconds of a call for threads, events and pinned memory. Three
linear layers, predicted at 484 µs on an H100 and a CPU, 524 µs on the H100, took 2.5 ms for a step."""


FINEST = 2_000
"""Limit on the tasks of a graph whose tasks are placed one by one if clusters do not fit."""

BUDGETS = (0.5, 0.2, 0.05, 0.0)
"""Shares of the saved bytes to keep, tried in turn while a cap does not hold."""


def best_plan(graph: Graph, price: Price, options: Options) -> Plan:
    """Return the shortest feasible plan over all candidate splits of the batch, the whole graph included.

    price: costs a graph on the machine.
    options.split: None: whole batch; an int: that many equal parts; a mapping: share of rows of each device;
    "features": products split along features, in the fastest number of parts; "auto": all that may pay.
    options.recompute: share of the bytes saved for a backward that stay saved (`recomputed`); "auto": all
    if caps hold, else the largest of `BUDGETS` with which they do.

    Raises the PlanError or MemoryCapError of the whole graph if nothing is feasible.
    """

    def planned(graph: Graph) -> Plan:
        try:
            return _best_cut(graph, price, options)
        except MemoryCapError:
            if len(graph.tasks) > FINEST:
                raise
        log.info("%s: tasks are placed one by one, because clusters of them do not fit", graph.name)
        return _best_cut(graph, lambda cut: unfused(price(cut)), options)

    if options.recompute is None:
        return planned(graph)
    if options.recompute != "auto":
        return planned(recomputed(graph, float(options.recompute)))
    try:
        return planned(graph)
    except MemoryCapError as error:
        refusals = [error]
        for budget in BUDGETS:
            try:
                plan = planned(recomputed(graph, budget))
            except MemoryCapError as refusal:
                refusals.append(refusal)
                continue
            log.info(
                "%s: %s of the saved bytes stay saved, the rest is computed again",
                graph.name,
                percent(budget),
            )
            return plan
        raise min(refusals, key=lambda refusal: sum(refusal.needs.values()) or math.inf) from None


class _Race:
    """Plans of one graph, whole and with several splits of its batch. `refusal`: the error of the first graph
    that does not fit."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.ran: list[Candidate] = []
        self.refusal: MemoryCapError | None = None

    def enter(self, costed: CostedGraph, policy: Policy, note: str = "") -> Plan | None:
        """Plan a graph and enter the plan; return it, or None if the memory caps do not hold or it cannot be
        shorter than the plans before it."""
        split = costed.graph.split
        shortest = min((plan.makespan for plan in self.plans), default=math.inf)
        try:
            plan = place(costed, policy, below=shortest)
        except TooLongError as error:
            self.ran.append(Candidate("-", split, None, ", ".join(filter(None, (note, str(error))))))
            return None
        except MemoryCapError as error:
            self.refusal = self.refusal or error
            return None
        self.plans.append(plan)
        self.ran += [plan.candidate(note)] if split else plan.candidates
        if split:
            log.info("planned %s%s: %s", split, f", {note}" if note else "", seconds(plan.makespan))
        return plan

    def out(self, parts: int, why: str) -> None:
        """Note a split into `parts` parts that cannot take part."""
        self.ran.append(Candidate("-", f"{parts} parts", None, why))


def _best_cut(graph: Graph, price: Price, options: Options) -> Plan:
    """Return the best plan over all splits of the batch."""
    policy, split, batch_norm = options.policy, options.split, options.batch_norm
    if split is not None and not isinstance(split, str):
        rows = batch_of(graph)
        empty = any(0 in graph.value[name].shape for name in graph.inputs)
        if rows is not None and (rows < 2 or empty):
            # Neither a loader's last, short batch nor an empty sequence may stop the loop.
            log.info("%s: a batch of %d rows%s stays whole", graph.name, rows, " without elements" * empty)
            split = None
    race, costed = _Race(), price(graph)
    whole = race.enter(costed, policy)
    if split not in (None, "auto", 1):
        race.plans.clear()
    singles = dict(whole.singles) if whole else {}
    # A user's own policy names the tasks of the unsplit graph.
    auto = split == "auto"
    wanted = None if split == "features" or (callable(policy) and auto) else split
    for sizes in candidates(graph, costed.machine, wanted, singles):
        try:
            cut = split_graph(graph, sizes, forced=not auto, batch_norm=batch_norm)
        except PlanError as error:
            if not auto:
                raise
            race.out(len(sizes), str(error))
            continue
        if auto and not cut.split:
            race.out(len(sizes), "the batch passes through no task")
            continue
        if auto:
            race.enter(price(cut), policy)
            continue
        race.refusal, put = None, policy
        if isinstance(split, Mapping):
            put = _parts_on([*split], allot(sum(sizes), tuple(split.values())), "the split asked for")
        race.enter(price(cut), put)
        if (refusal := race.refusal) is not None:
            what = cut.split or f"all {sizes[0]} rows on one device"
            asked = f'{what} as asked for (split="auto" finds shares by room): {refusal.wrong}'
            race.refusal = MemoryCapError(asked, refusal.way, refusal.needs)
    if split == "features" or (auto and policy == "auto"):
        for cut_costed in feature_cuts(graph, price, costed, forced=not auto):
            race.enter(cut_costed, policy)
    if split == "features" and not race.plans and not race.refusal:
        raise PlanError(
            f'split="features": no product of {graph.name!r} can be cut along features on this machine; it takes '
            "linears whose weights nothing else reads, and several lanes or devices"
        )
    if race.refusal and wanted == "auto" and policy == "auto":
        for priced, parts in _by_room(graph, price, batch_norm, costed, singles):
            for each in ("auto", parts):
                race.enter(priced, each, "shares by room")
    if not race.plans:
        raise race.refusal or PlanError(f"no plan of {graph.name!r} is feasible")
    best = min(race.plans, key=lambda plan: plan.makespan)
    if whole:
        # Compare a split with single devices that keep the batch whole, since they need not split it.
        best = replace(best, singles=whole.singles)
    ran = race.ran
    if policy == "auto" and split in (None, "auto") and whole and (why := _not_worth(best)):
        beaten = best.candidate(why)
        best = place(whole.costed, "single")
        if best.makespan > (beaten.makespan or 0.0):
            ran = [beaten if each.name == beaten.name else each for each in ran]
    return replace(best, candidates=tuple(ran))


def _by_room(
    graph: Graph, price: Price, batch_norm: str, costed: CostedGraph, singles: Mapping[str, float | None]
) -> Iterator[tuple[CostedGraph, Policy]]:
    """Yield the graph split in shares by speed, as far as caps allow, over all devices and over the
    accelerators alone, each with the policy that places the parts."""
    batch, machine = batch_of(graph), costed.machine
    if batch is None or batch < 2:
        return
    speeds = {
        name: 1 / time for name in machine.device if (time := singles.get(name) or _alone(costed, name))
    }
    for group in _groups(speeds, machine):
        fitted = _fitting(graph, price, batch_norm, machine, group)
        if fitted is not None:
            yield fitted


def _groups(speeds: dict[str, float], machine: Machine) -> list[dict[str, float]]:
    """Return the speeds of all devices, and those of the accelerators alone if these are fewer."""
    accelerators = {name: speed for name, speed in speeds.items() if not machine.device[name].traits.host}
    return [speeds, accelerators] if accelerators != speeds else [speeds]


def _fitting(
    graph: Graph, price: Price, batch_norm: str, machine: Machine, speeds: Mapping[str, float]
) -> tuple[CostedGraph, Policy] | None:
    """Return the graph split in shares that fit on devices of these speeds, and the policy that places the parts."""
    names, costed_cuts = [*speeds], dict[tuple[int, ...], CostedGraph]()

    def peaks(rows: tuple[int, ...]) -> list[int] | None:
        try:
            cut = split_graph(graph, tuple(count for count in rows if count), batch_norm=batch_norm)
        except PlanError:
            return None
        if not cut.split:
            return None
        costed_cuts[rows] = price(cut)
        lifted = replace(costed_cuts[rows], machine=machine.uncapped)
        peak = {memory.device: memory.peak for memory in place(lifted, _parts_on(names, rows)).memory}
        return [peak[name] for name in names]

    caps = [machine.device[name].memory_bytes for name in names]
    rows = (
        allot_within_caps(batch_of(graph) or 0, tuple(speeds.values()), caps, peaks)
        if len(names) > 1
        else None
    )
    return None if rows is None else (costed_cuts[rows], _parts_on(names, rows))


def _alone(costed: CostedGraph, device: str) -> float:
    """Return the sequential seconds of all clusters on a device; one that cannot run there counts at its fastest."""
    at = costed.index[device]
    return sum(
        cluster.seconds[at] or min((time for time in cluster.seconds if time is not None), default=0.0)
        for cluster in costed.clusters
    )


def _not_worth(plan: Plan) -> str:
    """Return the reason why a plan is not shorter enough than the best single device; "" if it is. Cores that
    emulated devices share count once."""
    single, machine = plan.best_single, plan.costed.machine
    if single is None:
        return ""
    worth, apart_s = WORTH, 0.0
    there = machine.clock == "real" and not machine.absent
    if there and any(device.torch_type != "cpu" for device in machine.devices):
        worth, apart_s = WORTH_APART, APART_S
    enough = (1 - worth) * single[1] - apart_s
    if plan.makespan >= enough:
        beside = f", beside {seconds(apart_s)} that lanes take to start and end," if apart_s else ""
        return f"a gain below {percent(worth)}{beside} is finer than predictions are"
    if machine.emulated and machine.clock == "real":
        host = machine.device[machine.host]
        work = sum(machine.device[p.device].threads * (p.end - p.start) for p in plan.placed)
        expected = work / (host.threads * host.lanes)
        if expected >= enough:
            return f"stand-ins share the cores of {host.name}, which needs {seconds(expected)} for all of it"
    return ""


def split_graph(
    graph: Graph, sizes: tuple[int, ...], *, forced: bool = False, batch_norm: str = "full"
) -> Graph:
    """Split the batch of the graph into `sizes` rows.

    In a joint graph, tasks that mix rows are first rewritten as sums, and small gradients are summed in buckets.
    Raises PlanError if a forced split into several parts splits nothing, or leaves a BatchNorm of each part one value
    for each channel.
    """
    if any(task.phase == "backward" for task in graph.tasks):
        cut = split(summed(graph, batch_norm=batch_norm), sizes)
        if batch_norm == "per_part" and (lone := single_valued(cut)):
            raise PlanError(
                f"{lone.where}: Expected more than 1 value per channel when training, got input size "
                f'{list(cut.value[lone.inputs[0]].shape)} in one of {cut.split}; give batch_norm="full", fewer parts '
                "(split=), or a larger batch (DataLoader(..., drop_last=True))"
            )
        cut = with_own_views(bucketed(cut)) if cut.split else graph
    else:
        cut = split(graph, sizes)
    if forced and len(sizes) > 1 and not cut.split:
        raise PlanError(
            f"split: the batch of {graph.name!r} cannot be cut: no task lets its rows through independently. "
            "Leave split=None, or place the tasks yourself with policy= or pins="
        )
    return cut


def candidates(
    graph: Graph, machine: Machine, wanted: Split, singles: Mapping[str, float | None]
) -> list[tuple[int, ...]]:
    """Return the row counts to try, each once: 2 … lanes equal parts, and shares by the devices' speed."""
    if wanted is None:
        return []
    batch = batch_of(graph)
    if not isinstance(wanted, str):
        if batch is None:
            raise PlanError(
                f"split={wanted!r}: no input of {graph.name!r} has a batch axis; leave split=None"
            )
        if isinstance(wanted, int):
            return [even(batch, wanted)] if wanted > 1 else []
        return [shares(batch, tuple(wanted.values()))]
    if batch is None or batch < 2:
        return []
    lanes = sum(device.lanes for device in machine.devices)
    row_counts = [even(batch, parts) for parts in range(2, min(lanes, batch, 8) + 1)]
    speeds = {name: 1 / time for name, time in singles.items() if time}
    row_counts += [
        shares(batch, tuple(group.values())) for group in _groups(speeds, machine) if len(group) > 1
    ]
    room = max(1, LARGEST_SPLIT_GRAPH // max(1, len(graph.tasks)))
    return [sizes for sizes in dict.fromkeys(row_counts) if 1 < len(sizes) <= room]


def _parts_on(
    devices: Sequence[str], rows: Sequence[int], title: str = "shares by room"
) -> Callable[[CostedGraph], dict[str, str]]:
    """Return the policy that places each part on its device (none without rows) and unsplit tasks on the
    host; all tasks on the one device that has rows, if there is only one. Sums, updates of weights and tasks
    that cannot run there stay open. `title`: policy name of its plans."""
    names = [name for name, count in zip(devices, rows) if count]

    def policy(costed: CostedGraph) -> dict[str, str]:
        graph, rest = costed.graph, costed.machine.host if len(names) > 1 else names[0]
        place = dict(zip(dict.fromkeys(task.part for task in graph.tasks if task.part), names))
        devices_of: dict[str, str] = {}
        for task in graph.tasks:
            device = place.get(task.part, rest)
            able = costed.cost[task.name].seconds
            if able[costed.index[device]] is None or task.phase == "update" or task.target == SUM:
                continue
            devices_of[task.name] = device
        return devices_of

    policy.title = title  # type: ignore[attr-defined]
    return policy
