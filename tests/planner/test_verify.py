"""The judge of plans: it has nothing to say about what the planner writes, and finds each way to spoil it."""

import copy
import json
import math
import random
from typing import Any

import pytest
from benchmarks.judging import described
from benchmarks.replay import replay
from benchmarks.verify import infeasibilities
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from taskfiles import link, planned, randomly, small

from autopar.errors import MemoryCapError
from autopar.planner import schedule


def random_plan(seed: int, tight: bool, wired: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A random graph and its plan, None where memory is too short."""
    graph = randomly(random.Random(seed), tight=tight, wired=wired)
    try:
        return graph, planned(graph)
    except MemoryCapError:
        return graph, None


@pytest.mark.slow
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9), st.booleans(), st.booleans())
def test_plans_can_be_carried_out(seed, tight, wired):
    graph, plan = random_plan(seed, tight, wired)
    if plan is None:
        return
    assert infeasibilities(graph, plan) == []
    again = replay(graph, plan)
    assert again["makespan_s"] <= plan["makespan_s"] * 1.02
    assert [task["id"] for task in again["tasks"]] == [task["id"] for task in plan["tasks"]]
    if not tight:
        assert infeasibilities(graph, again) == []
    if not wired:
        assert again["makespan_s"] == pytest.approx(plan["makespan_s"])


def test_tasks_are_not_placed_where_no_link_leads_on():
    times = [{"p": 1.0, "q": 5.0}, {"s": 8.0}, {"s": 0.2}, {"s": 1.0}, {"q": 0.5}]
    graph = {
        "tasks": [{"id": f"t{n}", "seconds": seconds} for n, seconds in enumerate(times)],
        "values": [{"id": "v", "producer": "t0", "consumers": ["t1", "t2", "t4"], "bytes": 1000}],
        "devices": [{"name": n, "lanes": lanes} for n, lanes in (("p", 2), ("q", 3), ("r", 1), ("s", 2))],
        "links": [link("r", "s"), link("q", "r")],
    }
    plan = planned(graph)
    assert infeasibilities(graph, plan) == []
    assert plan["makespan_s"] == pytest.approx(5 + 8 + 2 * 2e-3)


def entry(plan: dict[str, Any], **where: Any) -> dict[str, Any]:
    """The one task or transfer of a plan with these fields."""
    both = [*plan["tasks"], *plan["transfers"]]
    return next(e for e in both if all(e.get(key) == value for key, value in where.items()))


def shift(step: dict[str, Any], by: float) -> None:
    """Move a step in time."""
    step["start_s"] += by
    step["end_s"] += by


SPOILT = {
    "is not placed": lambda plan: plan["tasks"].remove(entry(plan, id="b")),
    "is placed twice, on": lambda plan: plan["tasks"].append(copy.copy(entry(plan, id="b"))),
    "which is not a task": lambda plan: entry(plan, id="b").update(id="nobody"),
    "which is not a device": lambda plan: entry(plan, id="b").update(device="tpu"),
    "cannot run on gpu": lambda plan: entry(plan, id="b").update(device="gpu", lane=0),
    "pinned to gpu": lambda plan: entry(plan, id="c").update(device="cpu"),
    "takes": lambda plan: entry(plan, id="b").update(end_s=entry(plan, id="b")["end_s"] - 0.1),
    "which has 2": lambda plan: entry(plan, id="b").update(lane=2),
    "before it is there": lambda plan: shift(entry(plan, id="c"), -0.2),
    "before the beginning": lambda plan: shift(entry(plan, id="a"), -0.2),
    "reads 'w' on gpu": lambda plan: plan["transfers"].remove(entry(plan, value="w")),
    "reads 'x' on gpu": lambda plan: plan["transfers"].remove(entry(plan, value="x")),
    "leaves gpu for cpu before": lambda plan: shift(entry(plan, value="v"), -0.1),
    "which no link joins": lambda plan: entry(plan, value="v").update(dst="gpu"),
    "which is not a value": lambda plan: entry(plan, value="v").update(value="nothing"),
    "from gpu to cpu, not": lambda plan: entry(plan, value="v").update(
        end_s=entry(plan, value="v")["end_s"] - 1e-6
    ),
    "comes to cpu twice": lambda plan: plan["transfers"].append(copy.copy(entry(plan, value="v"))),
    "the wire 'bus' has": lambda plan: plan["transfers"].append(copy.copy(entry(plan, value="v"))),
    "never comes to cpu": lambda plan: plan["transfers"].remove(entry(plan, value="y")),
    "the makespan is said": lambda plan: plan.update(makespan_s=plan["makespan_s"] * 0.99),
    "is above the makespan": lambda plan: plan.update(lower_bound_s=plan["makespan_s"] * 1.01),
    "is said to take from nan": lambda plan: entry(plan, id="b").update(start_s=math.nan),
    "is said to travel from": lambda plan: entry(plan, value="v").update(end_s=math.inf),
    "the makespan is said to be nan": lambda plan: plan.update(makespan_s=math.nan),
    "the lower bound nan": lambda plan: plan.update(lower_bound_s=math.nan),
    "is on lane 0.5 of gpu": lambda plan: entry(plan, id="c").update(lane=0.5),
}


@pytest.mark.parametrize("says", SPOILT)
def test_every_way_to_spoil_a_plan_is_found(says):
    graph = small()
    graph["tasks"][0]["pin"] = "gpu"
    plan = planned(graph)
    assert infeasibilities(graph, plan) == []
    SPOILT[says](plan)
    found = infeasibilities(graph, plan)
    assert any(says in sentence for sentence in found), found


def test_steps_of_no_time_hide_no_overlap():
    seconds = {"a": 1.0, "b": 0.5, "c": 0.0}
    graph = {
        "tasks": [{"id": name, "seconds": {"p": s}} for name, s in seconds.items()],
        "values": [],
        "devices": [{"name": "p"}],
        "links": [],
    }

    def said(**starts: float) -> list[str]:
        steps = [
            {"id": n, "device": "p", "lane": 0, "start_s": s, "end_s": s + seconds[n]}
            for n, s in starts.items()
        ]
        last = max(step["end_s"] for step in steps)
        return infeasibilities(
            graph, {"makespan_s": last, "lower_bound_s": 0.0, "tasks": steps, "transfers": []}
        )

    for moment in (0.0, 1e-13, 1.0 - 1e-13, 1.0, 1.5):
        assert said(a=0.0, b=1.0, c=moment) == []
        assert any(
            "lane 0 of p has task 'a' and task 'b'" in text for text in said(a=0.0, b=0.4, c=moment / 1.5)
        )
    assert said(a=0.0, b=1.0, c=0.5) == ["lane 0 of p has task 'a' and task 'c' at 0.5 s"]


def test_groups_share_a_device():
    graph = small()
    graph["tasks"][0]["pin"] = "gpu"
    plan = planned(graph)
    graph["tasks"][0]["colocate"] = graph["tasks"][1]["colocate"] = "g"
    assert any("must be on one device" in sentence for sentence in infeasibilities(graph, plan))


def test_transfers_that_take_no_time_do_not_bring_a_value_to_each_other():
    free = {"latency_s": 0.0, "bytes_per_s": 1e6}
    graph = {
        "tasks": [{"id": "a", "seconds": {"p": 1.0}}, {"id": "b", "seconds": {"q": 1.0}}],
        "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": 0}],
        "devices": [{"name": name} for name in "pqr"],
        "links": [{"src": src, "dst": dst, **free} for src, dst in ("pq", "qr", "rq")],
    }
    tasks = [
        {"id": "a", "device": "p", "lane": 0, "start_s": 0.0, "end_s": 1.0},
        {"id": "b", "device": "q", "lane": 0, "start_s": 0.0, "end_s": 1.0},
    ]
    moves = [{"value": "v", "src": s, "dst": d, "start_s": 0.0, "end_s": 0.0} for s, d in ("qr", "rq")]
    plan = {"makespan_s": 1.0, "lower_bound_s": 1.0, "tasks": tasks, "transfers": moves}
    found = infeasibilities(graph, plan)
    assert any("reads 'v' on q before it is there" in sentence for sentence in found), found
    assert sum("leaves" in sentence for sentence in found) == 2


def at_most(graph: dict[str, Any], plan: dict[str, Any], device: str) -> int:
    """The least cap of a device under which the judge lets a plan pass, found by halving."""
    low, high = 0, 10**6
    place = next(d for d in graph["devices"] if d["name"] == device)
    while low < high:
        place["memory_bytes"] = (low + high) // 2
        if any("holds" in sentence for sentence in infeasibilities(graph, plan)):
            low = place["memory_bytes"] + 1
        else:
            high = place["memory_bytes"]
    return low


def test_memory_counts_state_scratch_and_values_while_they_are_used():
    graph = {
        "tasks": [
            {"id": "a", "seconds": {"p": 1.0}, "state_bytes": 1, "workspace_bytes": 20},
            {"id": "b", "seconds": {"p": 1.0}, "state_bytes": 2, "workspace_bytes": 300},
            {"id": "c", "seconds": {"q": 1.0}},
        ],
        "values": [
            {"id": "v", "producer": "a", "consumers": ["b", "c"], "bytes": 4000},
            {"id": "w", "producer": "b", "consumers": ["c"], "bytes": 50_000},
        ],
        "devices": [{"name": "p"}, {"name": "q"}],
        "links": [link("p", "q")],
    }
    plan = planned(graph)
    # While b runs: the state of both, its scratch, what it reads and what it makes.
    assert at_most(graph, plan, "p") == 1 + 2 + 300 + 4000 + 50_000
    assert at_most(graph, plan, "q") == 4000 + 50_000
    # v leaves q before w arrives when nothing else reads it there: then they never meet.
    graph["values"][0]["consumers"] = ["b"]
    plan["transfers"] = [t for t in plan["transfers"] if t["value"] == "w"]
    assert at_most(graph, plan, "q") == 50_000


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_the_planner_counts_memory_as_the_judge_does(seed):
    graph = randomly(random.Random(seed), 8, wired=True)
    plan = schedule(graph)
    written = json.loads(json.dumps(described(plan)))
    for device, peak in plan.peaks.items():
        # The planner holds what is delivered to the end, where the format only asks for its arrival.
        least = at_most(copy.deepcopy(graph), written, device)
        if not any("deliver_to" in value for value in graph["values"]):
            assert least == peak
        assert least <= peak
