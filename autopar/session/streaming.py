"""Weights on the host that no accelerator has room for: streamed, all or some, if that shortens the plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from ..costs.pins import streamed
from ..errors import MemoryCapError
from ..ir.graph import Graph
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system.text import percent, seconds
from .batch_split import FINEST

log = logging.getLogger("autopar")

Planned: TypeAlias = Callable[[Graph], Plan]
STAYING = (0.0, 0.25, 0.5)
"""Shares of an accelerator's memory for weights that stay there; each is planned."""
LEAST = 0.05
"""Share of all state's bytes; if the weights that may be streamed are fewer, no plan is tried."""


def shortest(
    graph: Graph,
    machine: Machine,
    homes: Mapping[str, str],
    planned: Planned,
    finely: Planned,
    trained: Collection[str] = (),
) -> Plan:
    """Return the plan of a graph, or a shorter one that streams weights if it fits on no accelerator alone.

    planned: plans a graph. finely: plans it without clusters, which need all their weights at once. trained:
    state that is not streamed; nor is any state that changes. Raises MemoryCapError if no plan fits.
    """
    plans: list[tuple[str, Plan]] = []
    refusal = None
    try:
        plans.append(("", planned(graph)))
    except MemoryCapError as error:
        refusal = error
    if not plans or _too_large(plans[0][1]):
        for label, names in _sets(graph, machine, homes, {*trained, *graph.changing, *graph.mutated}):
            sent = streamed(graph, {*graph.streamed, *names})
            with suppress(MemoryCapError):
                plans.append((label, planned(sent)))
                if _too_large(plans[-1][1]) and len(graph.tasks) <= FINEST:
                    plans.append((label, finely(sent)))
                log.info("%s of the weights streamed: %s", label, seconds(plans[-1][1].makespan))
    if not plans:
        assert refusal is not None
        raise refusal
    label, best = min(plans, key=lambda each: each[1].makespan)
    others = [plan.candidate(_note(name)) for name, plan in plans if plan is not best]
    # The best plan's own candidates stream the same weights.
    candidates = [replace(each, note=each.note or _note(label)) for each in best.candidates]
    return replace(best, candidates=(*candidates, *others)) if others else best


def _note(label: str) -> str:
    return f"{label} of the weights streamed" if label else "no weights streamed"


def _too_large(plan: Plan) -> bool:
    """Return True if no accelerator alone has room for the graph."""
    devices = plan.costed.machine.devices
    alone = [dict(plan.singles).get(device.name) for device in devices if not device.traits.host]
    return bool(alone) and all(seconds is None for seconds in alone)


def _sets(
    graph: Graph, machine: Machine, homes: Mapping[str, str], fixed: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield sets of state on the host to stream, without `fixed` state and what shares its memory, each with
    its share of bytes as text. State that stays is spread evenly, so that work overlaps transfers."""
    host = machine.device[machine.host]
    rooms = [device.memory_bytes for device in machine.devices if not device.traits.host]
    value = graph.value
    tied = {value[name].storage for name in fixed if name in value}
    here = (name for name in graph.state if homes[name] == host.name and value[name].storage not in tied)
    size = {name: value[name].bytes for name in here}
    total = sum(size.values())
    least = LEAST * sum(value[name].bytes for name in graph.state)
    if not host.traits.host or not rooms or None in rooms or total <= least:
        return
    for share in STAYING:
        resident = share * max(room or 0 for room in rooms) / total
        names, spare = [], 0.0
        for name, nbytes in size.items():
            spare += resident * nbytes
            if spare >= nbytes:
                spare -= nbytes
            else:
                names.append(name)
        if names:
            yield percent(sum(size[name] for name in names) / total), tuple(names)
