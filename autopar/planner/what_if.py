"""What-if analysis: the one change of hardware or of a cap that would shorten a plan most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from ..errors import AutoparError
from ..ir.costed import Cluster, CostedGraph
from ..ir.device import Device, Link
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.timeline import Placed
from .bounds import lower_bound
from .candidates import Race
from .duplication import POLICY as COPIED
from .duplication import once, repeated
from .lists.heft import heft, lookahead
from .lists.memory_first import fill, follow
from .model.instance import Instance
from .model.simulator import Schedule, schedule_of
from .policies import enter_fitting
from .search.anneal import POLICY as SEARCHED
from .search.anneal import anneal, polish
from .search.climb import climb
from .search.large import LARGE, contended, quickest, variants
from .throughput.balance import balance
from .throughput.loads import Standing, loads_of
from .throughput.objective import POLICY as THROUGHPUT
from .throughput.objective import load_bound

MOST = 16
"""Limit on the changes tried, by their share of the critical path."""
FEWER = 60_000
"""Approximate limit on the clusters of all changes together: fewer changes are tried on large graphs, at least
`FEWEST`."""
FEWEST = 6
FINAL = 3
"""Number of the best changes that get a longer search."""
STEPS = 40_000
"""Steps of that search for each change."""
HELPS = 0.005
"""Share by which a change must shorten a plan to be reported."""
FASTER = 2.0
"""Speed-up of a device or bus that is tried."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, such as `cuda:0 twice as fast`, and the makespan (for throughput the period) of the best plan found
    with it, in seconds; a better one may exist."""

    what: str
    seconds: float


def changes(plan: Plan) -> tuple[_Change, ...]:
    """Return the changes that would shorten a plan, best first; empty if none does.

    For each change, the shortest of these counts: the same plan on the changed machine, list schedules and,
    for the best few, a search. Deterministic. Since the plan itself may have been searched longer, the gain
    is a minimum. Never raises: a change that cannot be planned is skipped.
    """
    found = _throughput(plan) if plan.policy == THROUGHPUT else _latency(plan)
    helping = [change for change in found if change.seconds < plan.reached * (1 - HELPS)]
    return tuple(sorted(helping, key=lambda change: change.seconds))


def promising(plan: Plan, most: int) -> list[_Option]:
    """Return at most `most` changes with the largest gain on the critical path, in the order of `options`; for equal
    changes to devices of one kind, the best of each kind before the second best of any."""
    machine, gain = plan.costed.machine, _gains(plan)
    kind_of = {device.name: device.kind for device in machine.devices}
    found = [*options(plan.costed)]

    def gained(i: int) -> float:
        # Another device takes work over as another lane does.
        kind = "lanes" if found[i].kind == "device" else found[i].kind
        return gain.get((kind, found[i].of), 0.0)

    alike: dict[tuple[str, str], int] = {}
    ranks = {}
    for i in sorted(range(len(found)), key=lambda i: (-gained(i), i)):
        key = found[i].kind, kind_of.get(found[i].of, found[i].of)
        ranks[i] = alike[key] = alike.get(key, -1) + 1
    first = sorted(range(len(found)), key=lambda i: (ranks[i], -gained(i), i))
    return [found[i] for i in sorted(first[:most])]


def _gains(plan: Plan) -> dict[tuple[str, str], float]:
    """Return the seconds of the critical path that each (kind of change, device or bus) affects."""
    machine, found = plan.costed.machine, plan.critical
    name_of = {(link.src, link.dst): name for name, links in wires(machine).items() for link in links}
    gain: dict[tuple[str, str], float] = defaultdict(float)
    for number in found.path:
        step, binding = found.steps[number], found.last[number]
        took = step.end - step.start
        if isinstance(step, Placed):
            gain["compute", step.device] += took / 2
            if binding and binding.kind == "lane":
                gain["lanes", step.device] += min(took, step.start - found.ready(number))
        else:
            wire = name_of[step.src, step.dst]
            latency = machine.link[step.src, step.dst].latency_s
            gain["latency", wire] += latency
            gain["bytes", wire] += (took - latency) / 2
    used = {step.device for step in plan.placed}
    for device in machine.devices:
        # An unused device counts too: its cap may be what keeps work away.
        if device.memory_bytes is not None and (
            device.name not in used or plan.peaks.get(device.name, 0) * 2 > device.memory_bytes
        ):
            gain["memory", device.name] += plan.makespan
    return gain


def _latency(plan: Plan) -> Iterator[_Change]:
    clusters = max(1, len(plan.costed.clusters))
    tried = []
    for option in promising(plan, max(FEWEST, min(MOST, FEWER // clusters))):
        try:
            race = _raced(plan, option)
            found = min(plan.makespan, _as_it_was(plan, option), race.best().makespan)
        except AutoparError:
            continue
        tried.append((found, option, race))
    tried.sort(key=lambda each: each[0])
    for rank, (found, option, race) in enumerate(tried):
        if rank < FINAL and clusters <= LARGE and not plan.costed.machine.queued:
            found = min(found, _searched(plan, race))
        yield _Change(option.what, found)


def _throughput(plan: Plan) -> Iterator[_Change]:
    """Yield changes with their periods: for the same placement and, if promising, for a better one."""
    at = {step.cluster: step.device for step in plan.placed}
    hoped = []
    for option in options(plan.costed):
        instance = Instance(option.apply(plan.costed))
        loads = loads_of(instance)
        where = [instance.costed.index[at[instance.names[members[0]]]] for members in loads.members]
        found = min(plan.period or math.inf, Standing(loads, where).period)
        hoped.append((load_bound(instance), option, loads, where, found))
    hoped.sort(key=lambda each: each[0])
    for rank, (least, option, loads, where, found) in enumerate(hoped):
        if rank < FINAL and least < found:
            better = balance(loads, starts=[where])[0]
            found = min(found, Standing(loads, better).period) if better is not None else found
        yield _Change(option.what, found)


def _raced(plan: Plan, option: _Option) -> Race:
    """Race the same plan, if it has no duplicates, against list schedules on the changed machine; on a large graph
    whose plan was searched, also one annealing chain."""
    race = Race(Instance(option.apply(once(plan.costed))))
    instance = race.instance
    if not plan.costed.again:
        race.enter(schedule_of(plan))
    policies: list[Callable[..., Schedule]] = [heft, lookahead]
    if instance.clusters > LARGE:
        # There is time for only one: the one that was best.
        quick = partial(quickest, until=math.inf) if contended(instance) else heft
        policies = [variants(instance).get(plan.policy, quick)]
    for policy in (*policies, *((fill, follow) if instance.tight else ())):
        enter_fitting(race, policy)
    if instance.clusters > LARGE and plan.policy in (SEARCHED, COPIED) and (leader := race.leading()):
        for schedule in polish(instance, 0.0, leader.play, STEPS, math.inf):
            race.enter(schedule)
    return race


def _as_it_was(plan: Plan, option: _Option) -> float:
    """Return the seconds of a plan with duplicates on the changed machine, with the same placement and orders."""
    if not plan.costed.again:
        return math.inf
    entry = Race(Instance(option.apply(plan.costed))).trial(schedule_of(plan))
    return math.inf if entry is None or entry.over else entry.makespan


def _searched(plan: Plan, race: Race) -> float:
    """Return the seconds of the best plan of a search that starts from the race's best."""
    race.bound = lower_bound(race.instance)
    for schedule in anneal(race.instance, race.bound, STEPS):
        race.enter(schedule)
    climb(race, STEPS)
    best = race.best()
    if plan.costed.again:
        best = repeated(race, best)
    return best.makespan


@dataclass(frozen=True, slots=True)
class _Option:
    """A change, its name, and its target by name: a device (`compute`, `lanes`, `device`, `memory`) or a bus
    (`bytes`, `latency`)."""

    what: str
    kind: str
    of: str
    apply: Callable[[CostedGraph], CostedGraph]


def options(costed: CostedGraph) -> Iterator[_Option]:
    """Yield all single changes: a device or bus twice as fast, no latency, one more lane or device, no cap.

    Lanes are added to devices that have several, to CPUs, and to all devices of a graph file; CPUs only to a graph
    file.
    """
    machine = costed.machine
    for d, device in enumerate(machine.devices):
        name = device.name
        yield _Option(f"{name} twice as fast", "compute", name, partial(_quicker, d=d))
        if device.lanes > 1 or device.traits.host or not machine.queued:
            more = partial(_device, d=d, lanes=device.lanes + 1)
            yield _Option(f"one more lane of {name}", "lanes", name, more)
        if not device.traits.host or not machine.queued:
            yield _Option(f"one more device like {name}", "device", name, partial(_another, d=d))
        if device.memory_bytes is not None:
            uncapped = partial(_device, d=d, memory_bytes=None)
            yield _Option(f"no memory cap on {name}", "memory", name, uncapped)
    for name, links in wires(machine).items():
        called = name if " → " in name else f"bus {name}"
        yield _Option(f"{called} twice as fast", "bytes", name, partial(_links, changed=links, rate=FASTER))
        if any(link.latency_s for link in links):
            instant = partial(_links, changed=links, wait=0.0)
            yield _Option(f"{called} without latency", "latency", name, instant)


def wires(machine: Machine) -> dict[str, list[Link]]:
    """Return links by bus; a link without a bus by its ends."""
    found: dict[str, list[Link]] = {}
    for link in machine.links:
        found.setdefault(link.wire or f"{link.src} → {link.dst}", []).append(link)
    return found


def _quicker(costed: CostedGraph, d: int) -> CostedGraph:
    """Speed up the clusters on a device, except for the host's part."""

    def quick(cluster: Cluster, e: int, seconds: float) -> float:
        own = min(seconds, cluster.dispatch_s + (seconds - cluster.dispatch_s) / FASTER)
        return own if e == d else seconds

    clusters = (
        replace(
            cluster,
            seconds=tuple(s if s is None else quick(cluster, e, s) for e, s in enumerate(cluster.seconds)),
            modes=tuple((e, lanes, quick(cluster, e, s)) for e, lanes, s in cluster.modes),
        )
        for cluster in costed.clusters
    )
    return replace(costed, clusters=tuple(clusters))


def _device(costed: CostedGraph, d: int, **changed: Any) -> CostedGraph:
    devices = list(costed.machine.devices)
    devices[d] = replace(devices[d], **changed)
    return replace(costed, machine=replace(costed.machine, devices=tuple(devices)))


def _links(costed: CostedGraph, changed: list[Link], rate: float = 1.0, wait: float = 1.0) -> CostedGraph:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * rate, latency_s=link.latency_s * wait)
        if link in changed
        else link
        for link in costed.machine.links
    )
    return replace(costed, machine=replace(costed.machine, links=links))


def _another(costed: CostedGraph, d: int) -> CostedGraph:
    model = costed.machine.devices[d]
    taken = {device.name for device in costed.machine.devices}
    new = replace(model, name=next(n for k in count(1) if (n := f"{model.kind}:{k}") not in taken))
    last = len(costed.machine.devices)
    clusters = tuple(
        replace(cluster, seconds=(*cluster.seconds, cluster.seconds[d]),
                modes=(*cluster.modes, *((last, lanes, s) for e, lanes, s in cluster.modes if e == d)))
        for cluster in costed.clusters
    )  # fmt: skip
    links = (*costed.machine.links, *_joined(costed.machine, model, new))
    machine = replace(costed.machine, devices=(*costed.machine.devices, new), links=links)
    costs = tuple(replace(cost, seconds=(*cost.seconds, cost.seconds[d])) for cost in costed.costs)
    return replace(costed, machine=machine, clusters=clusters, costs=costs)


def _joined(machine: Machine, model: Device, new: Device) -> list[Link]:
    """Return links of a new device like those of its `model`, on the same buses if others share these, else
    on new ones; and links between the two like those between `model` and a third of their kind."""
    shared = {
        wire
        for wire, links in wires(machine).items()
        if any(model.name not in (link.src, link.dst) for link in links)
    }

    def wire_of(link: Link) -> str | None:
        return link.wire if link.wire is None or link.wire in shared else f"{link.wire} of {new.name}"

    kin = {device.name for device in machine.devices if device.kind == model.kind} - {model.name}
    found: list[Link] = []
    between: dict[bool, Link] = {}
    for link in machine.links:
        if link.src == model.name:
            found.append(replace(link, src=new.name, wire=wire_of(link)))
            if link.dst in kin:
                between.setdefault(True, replace(link, dst=new.name, wire=wire_of(link)))
        elif link.dst == model.name:
            found.append(replace(link, dst=new.name, wire=wire_of(link)))
            if link.src in kin:
                between.setdefault(False, replace(link, src=new.name, wire=wire_of(link)))
    return [*found, *between.values()]
