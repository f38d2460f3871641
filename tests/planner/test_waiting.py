"""Copies that are held back for more urgent ones: shorter plans that wires keep nearly as well."""

import math
from dataclasses import replace

import pytest
from benchmarks import instances
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.planner.candidates import KEPT, Entry, Race
from autopar.planner.formats import read
from autopar.planner.lists.heft import heft
from autopar.planner.model.problem import Problem
from autopar.planner.model.simulator import Play, Schedule
from autopar.planner.search.transfer_order import hold_back


# x ─▶ (bus, 1 s) ─▶ short on "b"      y, which is made 0.1 s later, waits for x on the bus
# y ─▶ (bus, 1 s) ─▶ long  on "a"
def two_on_a_bus(long: float) -> dict:
    def task(name, **seconds):
        return {"id": name, "seconds": seconds}

    return {
        "tasks": [task("x", cpu=1.0), task("y", cpu=0.1), task("short", b=0.1), task("long", a=long)],
        "values": [
            {"id": "vx", "producer": "x", "consumers": ["short"], "bytes": 1},
            {"id": "vy", "producer": "y", "consumers": ["long"], "bytes": 1},
        ],
        "devices": [{"name": "cpu", "lanes": 1}, {"name": "a", "lanes": 1}, {"name": "b", "lanes": 1}],
        "links": [
            {"src": "cpu", "dst": to, "latency_s": 1.0, "bytes_per_s": 1e9, "wire": "bus"} for to in "ab"
        ],
    }


def entered(graph: dict) -> Entry:
    problem = Problem(read(graph))
    orders = (("x", "y"), ("long",), ("short",))
    lanes = {lane: order for (lane,), order in zip(problem.lane_names, orders)}
    found = Race(problem).enter(Schedule("given", lanes))
    assert found
    return found


def test_an_urgent_copy_goes_first():
    found = entered(two_on_a_bus(97.0))
    held = hold_back(found, 0.0, math.inf)
    assert held.makespan == pytest.approx(found.makespan - 0.9)
    assert held.served == pytest.approx(found.makespan) and held.served <= KEPT * held.makespan
    assert held.play.device == found.play.device


def test_of_two_that_ask_at_one_moment_the_plan_says_which_goes_first():
    graph = two_on_a_bus(10.0)
    for value in graph["values"]:
        value |= {"producer": None, "home": "cpu"}
    found = entered(graph)
    held = hold_back(found, 0.0, math.inf)
    assert (found.makespan, held.makespan) == (pytest.approx(12.0), pytest.approx(11.0))
    # Nobody is held back: a wire that serves who comes first keeps it, as far as it is told who that is.
    assert held.served == held.makespan == Play(held.play.problem, held.schedule).makespan


@pytest.mark.parametrize("why", ["more than may be promised", "the bound", "no time", "too large", "queues"])
def test_nothing_is_held_back(why, monkeypatch):
    found = entered(two_on_a_bus(10.0 if why == "more than may be promised" else 97.0))
    if why == "too large":
        monkeypatch.setattr("autopar.planner.search.transfer_order.STEPS", len(found.play.end) - 1)
    if why == "queues":
        object.__setattr__(found.play.problem.costed.machine, "queued", True)
    bound = found.makespan if why == "the bound" else 0.0
    assert hold_back(found, bound, 0.0 if why == "no time" else math.inf) is found


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_plan_gets_no_longer_and_keeps_what_it_may_promise(seed):
    race = Race(Problem(read(instances.small(seed))))
    found = race.enter(heft(race.problem))
    held = hold_back(found, 0.0, math.inf)
    assert held.makespan <= found.makespan
    served = Play(race.problem, replace(held.schedule, first_come=True)).makespan
    assert held is found or served <= KEPT * held.makespan * (1 + 1e-9)
    assert held.play.device == found.play.device and held.play.lane == found.play.lane
