"""What becomes of plans when only placement and orders are kept: the planner's promises hold."""

import pytest
from benchmarks import instances
from benchmarks.judging import by_direction, described
from benchmarks.judging import planned as judged
from benchmarks.replay import replay
from taskfiles import link, planned

from autopar.planner import place
from autopar.planner.formats import read
from autopar.planner.model.simulator import Schedule
from autopar.planner.search.anneal import LARGE


def test_wires_serve_who_comes_first():
    graph = {
        "tasks": [
            {"id": "slow", "seconds": {"p": 2.0}},
            {"id": "quick", "seconds": {"q": 1.0}},
            {"id": "end", "seconds": {"r": 1.0}},
        ],
        "values": [
            {"id": "late", "producer": "slow", "consumers": ["end"], "bytes": 1e6},
            {"id": "early", "producer": "quick", "consumers": ["end"], "bytes": 1e6},
        ],
        "devices": [{"name": name} for name in "pqr"],
        "links": [link("p", "r", wire="bus"), link("q", "r", wire="bus")],
    }
    plan = planned(graph)
    for step in plan["transfers"]:
        step["start_s"] += 10.0 * (step["value"] == "early")
    start = {step["value"]: step["start_s"] for step in replay(graph, plan)["transfers"]}
    assert start["early"] == 1.0
    assert start["late"] == pytest.approx(2.001)


def test_tasks_that_take_no_time_keep_the_order_in_which_their_lane_takes_them():
    # a could go first, and then so could what it sends over the wire, which b is in a hurry for.
    graph = {
        "tasks": [
            {"id": "a", "seconds": {"p": 0.0}},
            {"id": "b", "seconds": {"p": 0.0}},
            {"id": "after a", "seconds": {"q": 1.0}},
            {"id": "after b", "seconds": {"q": 3.0}},
        ],
        "values": [
            {"id": "x", "producer": None, "home": "r", "consumers": ["b"], "bytes": 10**6},
            {"id": "of a", "producer": "a", "consumers": ["after a"], "bytes": 3 * 10**6},
            {"id": "of b", "producer": "b", "consumers": ["after b"], "bytes": 10**6},
        ],
        "devices": [{"name": name} for name in "pqr"],
        "links": [link("r", "p", wire="bus"), link("p", "q", wire="bus")],
    }
    lanes = {"p/0": ("b", "a"), "q/0": ("after b", "after a")}
    plan = described(place(read(graph), lambda costed: Schedule("by hand", lanes)))
    assert [task["id"] for task in plan["tasks"]][:2] == ["b", "a"]
    again = replay(graph, plan)
    assert again["tasks"] == plan["tasks"]
    assert again["makespan_s"] == plan["makespan_s"]


@pytest.mark.slow
def test_plans_of_large_graphs_keep_their_promise():
    graph = by_direction(instances.planted(1, LARGE, 4, 2.0)[0])
    ours = judged(graph)
    assert not ours.wrong
    assert replay(graph, ours.data)["makespan_s"] <= ours.makespan * (1 + 1e-9)
