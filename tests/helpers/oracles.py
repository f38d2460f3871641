"""Oracles of the native search: the simulator, and `verify`, which knows neither."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities

from autopar.ir.costed import CostedGraph
from autopar.ir.plan import Plan
from autopar.planner import native, place
from autopar.planner.candidates import Entry, Race
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Schedule, Simulation
from autopar.planner.model.timing import timing
from autopar.planner.search import Listed, evaluate

needs_native = pytest.mark.skipif(native.LIBRARY is None, reason=native.STATUS)


def simulate(costed: CostedGraph, schedule: Schedule) -> Plan:
    """The plan by the simulator of a schedule."""
    return timing(Simulation(Instance(costed), schedule))


def shown(entry: Any) -> dict[str, Any]:
    """What a plan says of an entry."""
    found = timing(entry.simulation)
    return {"placed": found.placed, "transfers": found.transfers, "makespan": found.makespan}


def played(timed: Listed) -> Simulation:
    """The timing by the simulator of the orders of a timed list."""
    return Simulation(timed.instance, timed.schedule("test"))


def exact(timed: Listed) -> bool:
    """True if the simulator must find the times of a list: not where a way leads through a third device, whose second
    hops are served with the first here, nor where several links share a queue or, beside queues, a wire, nor where the
    orders of several lanes do not say which of two runs starts first."""
    instance = timed.instance
    ways = [hops or () for row in instance.route for hops in row]
    hops = [hop for own in ways for hop in own]
    wires, queues = [hop.wire for hop in hops if hop.wire >= 0], [hop.lane for hop in hops if hop.lane >= 0]
    shared = len({*wires}) < len(wires) or len({*queues}) < len(queues)
    if any(len(own) > 1 for own in ways) or (queues and shared):
        return False
    return timed.eager or max(map(len, instance.lane_names)) == 1


def timed_again(instance: Instance, kept: Listed) -> Listed:
    """A list that a chain found, timed from nothing: as long as the chain says, on devices that may have its runs,
    those of a group together."""
    timed = evaluate(instance, kept.device, kept.keys, eager=kept.eager)
    assert timed.makespan == kept.makespan
    assert all(d in allowed for d, allowed in zip(kept.device, instance.allowed))
    assert all(len({kept.device[r] for r in members}) == 1 for members in instance.members)
    return timed


def carried_out(timed: Listed) -> Entry:
    """A list as a plan that the simulator has timed: as long as the list says, where it must be."""
    instance = timed.instance
    entry = Race(instance).trial(timed.schedule("test"))
    assert entry is not None
    if exact(timed):
        assert entry.makespan == pytest.approx(timed.makespan, rel=1e-9)
    return entry


def uncapped(graph: dict[str, Any]) -> dict[str, Any]:
    """A graph without memory caps, which lists know nothing of."""
    bare = [{key: at for key, at in one.items() if key != "memory_bytes"} for one in graph["devices"]]
    return {**graph, "devices": bare}


def verified(graph: dict[str, Any], entry: Entry) -> None:
    """That a plan of a graph can be carried out."""
    costed = entry.simulation.instance.costed
    plan = replace(place(read(graph), "heft"), costed=costed, **shown(entry))
    written = json.loads(json.dumps({**described(plan), "lower_bound_s": 0.0}))
    assert infeasibilities(graph, written) == []
