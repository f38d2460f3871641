"""Runs computed once more where their result is wanted: sooner, still one plan of the same graph."""

import json
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import instances
from benchmarks.replay import replay
from benchmarks.verify import infeasibilities
from oracles import needs_native
from taskfiles import link

from autopar.ir.costed import repeatable
from autopar.planner import schedule
from autopar.planner.duplication import again, once
from autopar.planner.formats import described, read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play

pytestmark = needs_native


def fan(**change: Any) -> dict[str, Any]:
    """A cheap task with a large result that one task on each of three devices reads."""
    names = "pqr"
    first = {"id": "a", "seconds": dict.fromkeys(names, 0.1), "state_bytes": 1000, **change}
    return {
        "tasks": [first, *({"id": f"on {d}", "seconds": {d: 1.0}} for d in names)],
        "values": [{"id": "v", "producer": "a", "consumers": [f"on {d}" for d in names], "bytes": 10**6}],
        "devices": [{"name": d, "memory_bytes": 2 * 10**6} for d in names],
        "links": [link(a, b) for a in names for b in names if a != b],
    }


def devices_of(plan: dict[str, Any], task: str) -> list[str]:
    """Where a task of a written plan is."""
    return sorted(step["device"] for step in plan["tasks"] if step["id"] == task)


def test_a_cheap_task_is_computed_where_its_result_is_wanted():
    plan = described(schedule(fan()))
    assert plan["makespan_s"] == pytest.approx(1.1)
    assert devices_of(plan, "a") == ["p", "q", "r"]
    assert plan["transfers"] == []
    assert infeasibilities(fan(), plan) == []
    assert replay(fan(), plan)["makespan_s"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    "change", [{"pin": "p"}, {"seconds": {"p": 0.1}}, {"colocate": "g"}, {"state_bytes": 10**6}]
)
def test_a_task_that_may_not_be_elsewhere_or_does_not_fit_there_is_computed_once(change):
    graph = fan(**change)
    for device in graph["devices"][1:]:
        device["memory_bytes"] = 1_900_000
    plan = described(schedule(graph))
    assert devices_of(plan, "a") == ["p"] or "colocate" in change
    assert len(devices_of(plan, "a")) == 1
    assert infeasibilities(graph, plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("slower", [1, 2, 8])
def test_work_is_spread_for_copies_where_a_result_takes_longer_to_move_than_it(slower):
    """Each of nine tasks may go anywhere: without copies all on one device, or nearly, is the shortest."""
    graph = fan()
    graph["tasks"][1:] = [{"id": f"r{n}", "seconds": dict.fromkeys("pqr", 1.0)} for n in range(9)]
    graph["values"][0] |= {"consumers": [f"r{n}" for n in range(9)], "bytes": slower * 10**6}
    for device in graph["devices"]:
        device["memory_bytes"] = None
    plan = json.loads(json.dumps(described(schedule(graph))))
    assert infeasibilities(graph, plan) == []
    assert plan["makespan_s"] == pytest.approx(3.1)


def test_what_passes_through_a_device_with_a_copy_comes_from_the_copy():
    graph = fan(seconds={"p": 0.1, "q": 0.1})
    graph["links"] = [link("p", "q"), link("q", "r")]
    plan = described(schedule(graph))
    assert devices_of(plan, "a") == ["p", "q"]
    assert [(step["src"], step["dst"]) for step in plan["transfers"]] == [("q", "r")]
    assert plan["makespan_s"] == pytest.approx(0.1 + 1.001 + 1.0)
    assert infeasibilities(graph, plan) == []


def test_chains_are_computed_again_together():
    graph = fan()
    graph["tasks"].insert(1, {"id": "b", "seconds": dict.fromkeys("pqr", 0.1)})
    graph["values"][0]["producer"] = "b"
    graph["values"].append({"id": "u", "producer": "a", "consumers": ["b"], "bytes": 0})
    plan = described(schedule(graph))
    assert infeasibilities(graph, plan) == []
    assert plan["makespan_s"] < 2.0


def test_a_value_may_be_called_what_a_task_is_called():
    graph = fan()
    graph["values"][0]["id"] = "on p"
    graph["values"].append({"id": "a", "producer": None, "home": "p", "consumers": ["a"], "bytes": 0})
    plan = described(schedule(graph))
    assert devices_of(plan, "a") == ["p", "q", "r"]
    assert infeasibilities(graph, plan) == []


def alone(play: Play) -> bool:
    """Whether each task is on a device once, and each value made or brought there once, whichever copy it is of."""
    instance = play.instance
    original = dict(instance.costed.again)
    tasks = [(original.get(name, name), d) for name, d in zip(instance.names, play.device)]
    made = [(v, play.device[r]) for r, own in enumerate(instance.makes) for v in own]
    values = [
        (original.get(instance.values[v], instance.values[v]), d)
        for v, d in (*made, *((v, hop.dst) for v, hop in play.moves))
    ]
    return len(set(tasks)) == len(tasks) and len(set(values)) == len(values)


def wanted(seed: int, hub: bool = False) -> dict[str, Any]:
    """A small graph of large values, some of which must come to a device; with `hub` all go by way of the first."""
    graph = instances.small(seed, tasks=14, devices=3, ratio=4.0)
    if hub:
        graph["links"] = [link for link in graph["links"] if "d0" in (link["src"], link["dst"])]
    for value in graph["values"][::3]:
        value["deliver_to"] = "d1"
    return graph


def test_names_that_are_taken_are_given_to_nothing_else():
    graph = fan()
    graph["tasks"].append({"id": "a again on q", "seconds": {"p": 1.0}})
    costed = read(graph)
    where = {"a": "p", "on p": "p", "on q": "q", "on r": "r", "a again on q": "p"}
    found = again(Instance(costed), where, [("a", "q")])[0].graph.check()
    assert len({task.name for task in found.tasks}) == len(costed.graph.tasks) + 1
    assert not repeatable(costed, replace(costed.cluster["a"], colocate="g"))


def test_a_copy_reads_what_another_copy_makes_on_its_device():
    graph = fan()
    graph["tasks"].insert(1, {"id": "b", "seconds": dict.fromkeys("pqr", 0.1)})
    graph["values"].append({"id": "w", "producer": "b", "consumers": ["on q"], "bytes": 0})
    graph["values"][0]["consumers"] = ["b"]
    where = {"a": "p", "b": "p", "on p": "p", "on q": "q", "on r": "r"}
    twice, _ = again(Instance(read(graph)), where, [("a", "q"), ("b", "q")])
    assert twice.cluster["b again on q"].reads == ("v again on q",)
    assert twice.cluster["b"].reads == ("v",)
    assert once(twice) == read(graph)


def test_nothing_to_compute_but_a_value_to_deliver():
    graph = {
        "tasks": [],
        "values": [
            {"id": "v", "producer": None, "home": "d0", "deliver_to": "d1", "bytes": 10**6, "consumers": []}
        ],
        "devices": [{"name": "d0"}, {"name": "d1"}],
        "links": [link("d0", "d1"), link("d1", "d0")],
    }
    plan = schedule(graph)
    assert plan.lower_bound <= plan.makespan and not infeasibilities(graph, described(plan))


def test_a_plan_with_copies_is_compared_with_those_that_raced():
    plan = schedule(fan())
    own = [found for found in plan.candidates if found.policy == plan.policy]
    assert [found.makespan for found in own] == [plan.makespan]
    assert plan.makespan < min(found.makespan for found in plan.candidates if found not in own)
