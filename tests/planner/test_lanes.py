"""Clusters that take several lanes of a device, and transfers that wait in no copy queue, through the whole planner."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import simulate
from taskfiles import link, randomly, small

from autopar.errors import PlanError
from autopar.ir.device import Device
from autopar.ir.machine import Machine
from autopar.ir.plan import Plan
from autopar.planner import replan, schedule
from autopar.planner.formats import read, text
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play, Schedule, schedule_of


def wide(**seconds: float):
    """A cluster that takes one to three lanes of a CPU, and one that takes one, without anything between them."""
    graph = {
        "tasks": [
            {"id": "wide", "seconds": {"cpu": {key.strip("_"): s for key, s in seconds.items()}}},
            {"id": "narrow", "seconds": {"cpu": 1.0}},
        ],
        "values": [],
        "devices": [{"name": "cpu", "lanes": 3}],
    }
    return read(graph)


def test_a_run_takes_as_many_lanes_as_it_is_named_in():
    costed = wide(_1=3.0, _2=2.0, _3=1.0)
    for lanes, takes in ((("cpu/0",), 3.0), (("cpu/0", "cpu/2"), 2.0), (("cpu/0", "cpu/1", "cpu/2"), 1.0)):
        orders = {"cpu/1": ("narrow",), **dict.fromkeys(lanes, ("wide",))}
        if "cpu/1" in lanes:
            orders["cpu/1"] = ("narrow", "wide")
        found = simulate(costed, Schedule("hand", orders))
        step = next(step for step in found.placed if step.cluster == "wide")
        assert step.lanes == lanes
        assert step.end - step.start == takes
        assert step.start == (1.0 if "cpu/1" in lanes else 0.0)


def test_a_run_takes_no_number_of_lanes_that_it_cannot():
    costed = wide(_2=2.0)
    with pytest.raises(PlanError, match=r"gives cluster 'wide' 1 lanes of cpu; it can take 2"):
        simulate(costed, Schedule("hand", {"cpu/0": ("wide", "narrow")}))
    with pytest.raises(PlanError, match="twice"):
        simulate(costed, Schedule("hand", {"cpu/0": ("narrow", "wide"), "cpu/1": ("wide", "narrow")}))


def test_orders_of_lanes_that_cross_never_end():
    graph = {
        "tasks": [{"id": name, "seconds": {"cpu": {"2": 1.0}}} for name in "ab"],
        "values": [],
        "devices": [{"name": "cpu", "lanes": 2}],
    }
    with pytest.raises(PlanError, match="wait for each other"):
        simulate(read(graph), Schedule("hand", {"cpu/0": ("a", "b"), "cpu/1": ("b", "a")}))


def test_more_lanes_are_taken_where_that_helps_and_not_where_it_does_not():
    assert len(schedule(wide(_1=3.0, _2=2.0, _3=1.8)).place["wide"].lanes) > 1
    assert len(schedule(wide(_1=3.0, _2=3.5, _3=4.0)).place["wide"].lanes) == 1


def test_more_lanes_than_the_device_has_are_no_way():
    costed = wide(_1=3.0, _2=2.0, _8=0.1)
    assert costed.cluster["wide"].modes == ((0, 1, 3.0), (0, 2, 2.0))
    assert schedule(costed).lower_bound <= schedule(costed).makespan


def test_another_machine_may_have_fewer_lanes():
    costed = wide(_1=3.0, _3=1.0)
    fewer = Machine((Device("cpu", "cpu", lanes=2),), queued=False)
    assert schedule(costed, fewer).makespan == 3.0
    with pytest.raises(PlanError, match="'wide' can run on no device"):
        schedule(wide(_3=1.0), fewer)


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_a_plan_is_what_its_orders_simulate_to(seed):
    plan = schedule(randomly(random.Random(seed), 10))
    again = replan(plan.costed, plan)
    assert again.makespan == pytest.approx(plan.makespan)
    assert Play(Instance(plan.costed), schedule_of(plan)).makespan == pytest.approx(plan.makespan)
    assert {step.cluster: step.lanes for step in again.placed} == {
        step.cluster: step.lanes for step in plan.placed
    }


def test_a_plan_of_a_file_is_saved_and_loaded(tmp_path):
    plan = schedule(small())
    plan.save(tmp_path / "plan.json")
    assert text(Plan.load(tmp_path / "plan.json")) == text(plan)
    assert str(Plan.load(tmp_path / "plan.json")) == str(plan)


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


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_pictures_and_reports_of_any_plan(seed):
    from autopar.view import explain
    from autopar.view.placed import placed_svg
    from autopar.view.timeline import timeline_svg

    plan = schedule(randomly(random.Random(seed), 8))
    assert plan.costed.graph.name in explain(plan)
    assert "</svg>" in str(placed_svg(plan))
    assert "</svg>" in str(timeline_svg(plan.timeline()))


def test_every_copy_queue_of_a_machine_without_them_is_a_wire():
    instance = Instance(read(small()))
    assert instance.copy_lanes == ["bus"]
