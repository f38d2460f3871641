"""Copies of clusters and the places of all, found together: never longer, and no copy that nobody reads."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import instances
from benchmarks.verify import infeasibilities
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import needs_native, shown
from taskfiles import link, randomly
from test_duplicate import alone, fan, wanted

from autopar.planner import duplication, place
from autopar.planner.bounds import lower_bound
from autopar.planner.candidates import Race
from autopar.planner.duplication import once, repeated, scheduled
from autopar.planner.formats import described, read
from autopar.planner.lists.heft import heft
from autopar.planner.model.instance import Instance
from autopar.planner.search import evaluate
from autopar.planner.search.anneal import STEPS

pytestmark = pytest.mark.slow


def started(graph: dict[str, Any]):
    """The race of a graph with one list schedule in it, and that."""
    race = Race(Instance(read(graph)))
    return race, race.enter(heft(race.instance))


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_chains_make_a_plan_shorter_or_leave_it(seed):
    graph = wanted(seed, seed % 3 == 1) if seed % 3 else randomly(random.Random(seed))
    race, entry = started(graph)
    bound = lower_bound(race.instance)
    race.bound = bound
    found = repeated(race, entry)
    assert bound <= found.makespan * (1 + 1e-9) and not found.over
    assert found is entry or found.makespan < entry.makespan
    assert alone(found.play) and once(found.play.instance.costed) == race.instance.costed
    plan = described(replace(place(read(graph), "heft"), costed=found.play.instance.costed, **shown(found)))
    assert infeasibilities(graph, json.loads(json.dumps({**plan, "lower_bound_s": 0.0}))) == []
    # Nothing is drawn but by number.
    assert repeated(race, entry).makespan == found.makespan


@needs_native
def test_copies_make_plans_shorter():
    """Of graphs where a result takes longer to move than to make."""
    shorter = 0
    for seed in (14, 37):
        costed = read(instances.small(seed))
        once, copied = place(costed, steps=STEPS).makespan, place(costed, steps=STEPS, copies=True).makespan
        assert copied <= once
        shorter += copied < 0.99 * once
    assert shorter


def test_nothing_more_is_tried_at_the_bound_or_after_the_time(monkeypatch):
    race, entry = started(wanted(7))
    monkeypatch.setattr(duplication, "winners", None)
    race.bound = entry.makespan
    assert repeated(race, entry) is entry
    race.bound, race.until = 0.0, 0.0
    assert repeated(race, entry) is entry


@pytest.mark.parametrize("why", ["large", "several lanes", "nothing to move"])
def test_no_list_is_begun_where_none_is_of_use(monkeypatch, why):
    graph = wanted(7)
    if why == "nothing to move":
        graph["links"] = [{**one, "latency_s": 0.0} for one in graph["links"]]
        graph["values"] = [{**one, "bytes": 0} for one in graph["values"]]
    race, entry = started(graph)
    if why == "large":
        monkeypatch.setattr(duplication, "LARGEST", race.instance.clusters - 1)
    if why == "several lanes":
        race.instance.modes = {(0, 0): ((1, 1.0),)}
    monkeypatch.setattr(duplication, "winners", None)
    assert repeated(race, entry) is entry


@needs_native
def test_copies_for_copies_are_where_they_are_read():
    names = "pq"
    graph = {
        "tasks": [{"id": t, "seconds": dict.fromkeys(names, 1.0)} for t in ("a", "b", "c", "d")],
        "values": [
            {"id": "u", "producer": "a", "consumers": ["b"], "bytes": 10**7},
            {"id": "v", "producer": "b", "consumers": ["c", "d"], "bytes": 10**7},
        ],
        "devices": [{"name": d} for d in names],
        "links": [link("p", "q"), link("q", "p")],
    }
    instance = Instance(read(graph))
    # `a`, `b` and `c` on one device, `d` on the other with a copy of each of what it needs.
    both = scheduled(evaluate(instance, [0, 0, 0, 1, -1, 1, 1], [0, 1, 2, 2, 0, 0, 1], eager=True, of=[0, 1]))
    assert both is not None and both.makespan == pytest.approx(3.0) and not both.play.moves
    assert {original for _, original in both.play.instance.costed.again} == {*"abuv"}


@needs_native
def test_duplicates_keep_the_caps():
    """Two copies of `a` on devices that have room for one."""
    race, entry = started(fan())
    assert race.instance.tight
    found = repeated(race, entry)
    assert found.makespan == pytest.approx(1.1) and found.makespan < entry.makespan and not found.over
