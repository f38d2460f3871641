"""What-if analysis: a plan replayed with one device or link twice as fast, or with a link without latency."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ..ir.costed import Cluster, CostedGraph
from ..ir.device import Link
from ..ir.machine import Machine
from ..ir.plan import Plan
from .candidates import Race
from .model.instance import Instance
from .model.simulator import schedule_of

HELPS = 0.005
"""Share by which a change must shorten a plan to be reported."""
FASTER = 2.0
"""Speed-up of a device or bus that is tried."""


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
    for what, change in _options(plan.costed):
        entry = Race(Instance(change(plan.costed))).trial(schedule)
        if entry and not entry.over and entry.makespan < plan.makespan * (1 - HELPS):
            helping.append(_Change(what, entry.makespan))
    return tuple(sorted(helping, key=lambda change: change.seconds))


def _options(costed: CostedGraph) -> Iterator[tuple[str, Callable[[CostedGraph], CostedGraph]]]:
    """Yield each change with its name."""
    for d, device in enumerate(costed.machine.devices):
        yield f"{device.name} twice as fast", partial(_quicker, d=d)
    for name, links in _wires(costed.machine).items():
        called = name if " → " in name else f"bus {name}"
        yield f"{called} twice as fast", partial(_links, changed=links, rate=FASTER)
        if any(link.latency_s for link in links):
            yield f"{called} without latency", partial(_links, changed=links, wait=0.0)


def _wires(machine: Machine) -> dict[str, list[Link]]:
    """Return links by bus; a link without a bus by its ends."""
    wires: dict[str, list[Link]] = {}
    for link in machine.links:
        wires.setdefault(link.wire or f"{link.src} → {link.dst}", []).append(link)
    return wires


def _quicker(costed: CostedGraph, d: int) -> CostedGraph:
    """Speed up the clusters on a device, except for the host's part."""

    def quick(cluster: Cluster, seconds: float) -> float:
        return min(seconds, cluster.dispatch_s + (seconds - cluster.dispatch_s) / FASTER)

    clusters = (
        replace(
            cluster,
            seconds=tuple(
                s if s is None or e != d else quick(cluster, s) for e, s in enumerate(cluster.seconds)
            ),
        )
        for cluster in costed.clusters
    )
    return replace(costed, clusters=tuple(clusters))


def _links(costed: CostedGraph, changed: list[Link], rate: float = 1.0, wait: float = 1.0) -> CostedGraph:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * rate, latency_s=link.latency_s * wait)
        if link in changed
        else link
        for link in costed.machine.links
    )
    return replace(costed, machine=replace(costed.machine, links=links))
