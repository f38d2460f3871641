"""Orders in which no lane waits while it has something to start, and what large graphs are given of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from benchmarks import instances
from benchmarks.judging import by_direction, planned
from benchmarks.replay import replay

from autopar.planner.formats import read
from autopar.planner.lists.heft import heft
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Schedule, Simulation
from autopar.planner.search import evaluate
from autopar.planner.search.anneal import LARGE


def served(instance: Instance) -> Simulation:
    """The list schedule of a problem where wires serve first come, first served."""
    return Simulation(instance, Schedule("heft", heft(instance).lanes))


@pytest.mark.parametrize("seed", range(12))
def test_list_schedules_take_the_predicted_time(seed: int) -> None:
    instance = Instance(read(instances.small(seed)))
    simulation = served(instance)
    busy = evaluate(instance, simulation.device, simulation.start[: instance.clusters], eager=True)
    again = Simulation(instance, busy.schedule("busy"))
    assert again.device == simulation.device
    assert again.makespan == pytest.approx(busy.makespan)
    # Wherever a lane idles before a cluster, that run has waited for something that had not come.
    for order in again.orders:
        for before, r in pairwise(order):
            if again.start[r] > again.end[before] * (1 + 1e-9):
                assert again.start[r] == pytest.approx(again.ready[r])


@pytest.mark.slow
def test_plans_of_large_graphs_promise_what_wires_keep() -> None:
    graph = by_direction(instances.planted(1, LARGE, 4, 2.0)[0])
    ours = planned(graph)
    assert not ours.wrong
    assert replay(graph, ours.data)["makespan_s"] <= ours.makespan * 1.02


def test_of_what_could_start_the_most_urgent_does() -> None:
    graph = {"tasks": [{"id": name, "seconds": {"p": 1.0}} for name in "abc"], "values": []}
    instance = Instance(read({**graph, "devices": [{"name": "p"}]}))
    simulation = evaluate(instance, [0, 0, 0], [2.0, 0.0, 1.0], eager=True)
    assert (simulation.schedule("busy").lanes["p/0"], simulation.makespan) == (("b", "c", "a"), 3.0)
