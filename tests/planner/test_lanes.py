"""Devices with several lanes, and transfers that wait in no copy queue, through the whole planner."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from taskfiles import link, randomly, small

from autopar.planner import replan, schedule
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Simulation, schedule_of


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_a_plan_is_what_its_orders_simulate_to(seed):
    plan = schedule(randomly(random.Random(seed), 10))
    again = replan(plan.costed, plan)
    assert again.makespan == pytest.approx(plan.makespan)
    assert Simulation(Instance(plan.costed), schedule_of(plan)).makespan == pytest.approx(plan.makespan)
    assert {step.cluster: step.lane for step in again.placed} == {
        step.cluster: step.lane for step in plan.placed
    }


def test_lanes_of_transfers_have_names_that_pictures_can_take_apart():
    graph = small()
    for device, name in zip(graph["devices"], ("node/0", "node/1")):
        device["name"] = name
    graph["tasks"] = [{"id": n, "seconds": {"node/0": 1.0}, "pin": "node/0"} for n in "abc"]
    graph["values"][0]["home"], graph["values"][3]["deliver_to"] = "node/1", "node/1"
    graph["links"] = [link("node/0", "node/1"), link("node/1", "node/0")]
    plan = schedule(graph)
    assert {step.lane.rsplit("/", 1)[0] for step in plan.transfers} == {"node/0", "node/1"}
    assert {t.lane for t in plan.transfers} <= set(plan.costed.machine.lanes)
