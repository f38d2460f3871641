"""Bounds beside the plans that they are printed with: none is above its plan, and none below the trivial ones."""

import json
import math
import random
from dataclasses import replace

import pytest
from benchmarks.instances import small
from benchmarks.judging import described as written
from benchmarks.verify import infeasibilities
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly
from tiny import tiny

from autopar.errors import BoundWarning, PlanError
from autopar.ir.plan import FORMAT, Plan
from autopar.ir.plan_check import sound_bound
from autopar.ir.serialize import encode
from autopar.planner import place, schedule
from autopar.planner.bounds import lower_bound
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance


def test_a_bound_that_a_plan_refutes_is_told_and_not_claimed(monkeypatch):
    graph = small(1, tasks=10)
    known = schedule(graph)
    assert sound_bound(known.makespan * (1 + 1e-10), known.makespan) == known.makespan
    assert sound_bound(5e-324, 0.0) == 0.0
    monkeypatch.setattr("autopar.planner.portfolio.lower_bound", lambda instance, enough: 2 * known.makespan)
    with pytest.warns(BoundWarning, match="above a plan that takes"):
        plan = schedule(graph)
    assert plan.lower_bound == 0.0
    assert infeasibilities(graph, written(plan)) == []


def test_however_a_plan_comes_about_its_bounds_are_held_against_it(tmp_path):
    plan = schedule(small(1, tasks=10))
    for more in ({"lower_bound": 2 * plan.makespan}, {"lower_bound": math.nan}):
        with pytest.warns(BoundWarning, match="above a plan that takes"):
            assert replace(plan, **more).lower_bound == 0.0
    assert replace(plan, lower_bound=-1.0).lower_bound == 0.0
    saved = encode(plan) | {"lower_bound": 3 * plan.makespan}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"format": FORMAT, "plan": saved}))
    with pytest.warns(BoundWarning):
        assert Plan.load(path).lower_bound == 0.0


def test_losing_candidates_refute_a_bound_too(monkeypatch):
    costed = read(small(1, tasks=10))
    best, worst = place(costed), place(costed, "round_robin")
    assert worst.makespan > best.makespan * 1.1
    monkeypatch.setattr("autopar.planner.portfolio.lower_bound", lambda instance, enough: worst.makespan)
    with pytest.warns(BoundWarning):
        assert place(costed, "round_robin").lower_bound == 0.0


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14), st.sampled_from([0.1, 1.0, 10.0]))
def test_no_bound_is_below_the_trivial_ones(seed, tasks, ratio):
    draw = random.Random(seed)
    for graph in (small(seed, tasks=tasks, ratio=ratio), tiny(seed), randomly(draw, tasks)):
        least = trivial(graph)
        try:
            instance = Instance(read(graph))
        except PlanError:
            continue
        assert lower_bound(instance) * (1 + 1e-9) >= max(least)


def trivial(graph):
    """The longest way with each task where it is quickest, and all work over all lanes, in seconds: from the file."""
    lanes = {device["name"]: device.get("lanes", 1) for device in graph["devices"]}
    quickest, work = {}, 0.0
    for task in graph["tasks"]:
        least = min(seconds for d, seconds in task["seconds"].items() if task.get("pin") in (None, d))
        quickest[task["id"]] = least
        work += least
    ends: dict[str, float] = {}

    def end(task):
        if task not in ends:
            makers = [v["producer"] for v in graph["values"] if task in v["consumers"] and v["producer"]]
            ends[task] = quickest[task] + max(map(end, makers), default=0.0)
        return ends[task]

    return max(map(end, quickest)), work / sum(lanes.values())
