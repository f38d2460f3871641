"""What-if analysis: a plan replayed with all devices of a kind, or one link, twice as fast or without latency."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ..ir.costed import CostedGraph
from ..ir.device import Link
from ..ir.machine import Machine
from ..ir.plan import Plan
from .candidates import Race
from .model.instance import Instance
from .model.simulator import schedule_of

HELPS = 0.005
"""Share by which a change must shorten a plan to be reported."""
FASTER = 2.0
"""Speed-up of devices or of a link that is tried."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, such as `cuda:0 twice as fast`, and the makespan of the plan with it in seconds."""

    what: str
    seconds: float


def changes(plan: Plan) -> tuple[_Change, ...]:
    """Return the changes that would shorten a plan, best first; empty if none does.

    The placement and the orders of all lanes stay; only the times are new, so that a plan made for the changed machine
    may be shorter still.
    """
    schedule, helping = schedule_of(plan), []
    for what, costed in _options(plan.costed):
        entry = Race(Instance(costed)).trial(schedule)
        if entry and not entry.over and entry.makespan < plan.makespan * (1 - HELPS):
            helping.append(_Change(what, entry.makespan))
    return tuple(sorted(helping, key=lambda change: change.seconds))


def _options(costed: CostedGraph) -> Iterator[tuple[str, CostedGraph]]:
    """Yield the name of each change, and the graph costed with it. Equal devices change together: one of two that
    share the work evenly would shorten nothing."""
    machine = costed.machine
    kinds: dict[tuple[str, str], list[int]] = {}
    for d, device in enumerate(machine.devices):
        kinds.setdefault((device.kind, device.chip), []).append(d)
    for (kind, chip), devices in kinds.items():
        name = machine.devices[devices[0]].name
        called = name if len(devices) == 1 else f"all {len(devices)} {chip or kind} devices"
        yield f"{called} twice as fast", _quicker(costed, devices)
    for name, links in _wires(machine).items():
        called = name if " → " in name else f"bus {name}"
        yield f"{called} twice as fast", _links(costed, links, rate=FASTER)
        if any(link.latency_s for link in links):
            yield f"{called} without latency", _links(costed, links, wait=0.0)


def _wires(machine: Machine) -> dict[str, list[Link]]:
    """Return links by bus; a link without a bus by its ends."""
    wires: dict[str, list[Link]] = {}
    for link in machine.links:
        wires.setdefault(link.wire or f"{link.src} → {link.dst}", []).append(link)
    return wires


def _quicker(costed: CostedGraph, devices: Collection[int]) -> CostedGraph:
    """Speed up the clusters on some devices, except for the host's part."""

    def quick(seconds: float | None, dispatch: float) -> float | None:
        return seconds and min(seconds, dispatch + (seconds - dispatch) / FASTER)

    clusters = []
    for cluster in costed.clusters:
        pairs = enumerate(cluster.seconds)
        times = (quick(s, cluster.dispatch_s) if d in devices else s for d, s in pairs)
        clusters.append(replace(cluster, seconds=tuple(times)))
    return replace(costed, clusters=tuple(clusters))


def _links(costed: CostedGraph, changed: list[Link], rate: float = 1.0, wait: float = 1.0) -> CostedGraph:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * rate, latency_s=link.latency_s * wait)
        if link in changed
        else link
        for link in costed.machine.links
    )
    return replace(costed, machine=replace(costed.machine, links=links))
