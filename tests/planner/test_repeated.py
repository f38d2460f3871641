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

from autopar.planner import place
from autopar.planner.bounds import lower_bound
from autopar.planner.candidates import Race
from autopar.planner.duplication import search as repeated
from autopar.planner.duplication.duplicates import once
from autopar.planner.duplication.search import Place, places, scheduled
from autopar.planner.formats import described, read
from autopar.planner.lists.heft import heft
from autopar.planner.model.instance import Instance
from autopar.planner.search.anneal import STEPS

pytestmark = pytest.mark.slow


def started(graph: dict[str, Any]):
    """The race of a graph with one list schedule in it, and that."""
    race = Race(Instance(read(graph)))
    return race, race.enter(heft(race.instance))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_chains_make_a_plan_shorter_or_leave_it(seed):
    graph = wanted(seed, seed % 3 == 1) if seed % 3 else randomly(random.Random(seed))
    race, entry = started(graph)
    bound = lower_bound(race.instance)
    race.bound = bound
    found = repeated.repeated(race, entry)
    assert bound <= found.makespan * (1 + 1e-9) and not found.over
    assert found is entry or found.makespan < entry.makespan
    assert alone(found.play) and once(found.play.instance.costed) == race.instance.costed
    plan = described(replace(place(read(graph), "heft"), costed=found.play.instance.costed, **shown(found)))
    assert infeasibilities(graph, json.loads(json.dumps({**plan, "lower_bound_s": 0.0}))) == []
    # Nothing is drawn but by number.
    assert repeated.repeated(race, entry).makespan == found.makespan


@needs_native
def test_copies_make_plans_shorter():
    """Of graphs where a result takes longer to move than to make."""
    shorter = 0
    for seed in (14, 24, 27, 37):
        costed = read(instances.small(seed))
        once, copied = place(costed, steps=STEPS).makespan, place(costed, steps=STEPS, copies=True).makespan
        assert copied <= once
        shorter += copied < 0.99 * once
    assert shorter >= 2


def test_nothing_more_is_tried_at_the_bound_or_after_the_time(monkeypatch):
    race, entry = started(wanted(7))
    monkeypatch.setattr(repeated, "winners", None)
    race.bound = entry.makespan
    assert repeated.repeated(race, entry) is entry
    race.bound, race.until = 0.0, 0.0
    assert repeated.repeated(race, entry) is entry


@pytest.mark.parametrize("why", ["large", "several lanes", "nothing to move"])
def test_no_list_is_begun_where_none_is_of_use(monkeypatch, why):
    graph = wanted(7)
    if why == "nothing to move":
        graph["links"] = [{**one, "latency_s": 0.0} for one in graph["links"]]
        graph["values"] = [{**one, "bytes": 0} for one in graph["values"]]
    race, entry = started(graph)
    if why == "large":
        monkeypatch.setattr(repeated, "LARGEST", race.instance.clusters - 1)
    if why == "several lanes":
        race.instance.modes = {(0, 0): ((1, 1.0),)}
    monkeypatch.setattr(repeated, "winners", None)
    assert repeated.repeated(race, entry) is entry


def test_copies_that_nobody_reads_are_left_out():
    graph = fan()
    for task in graph["tasks"]:
        task["seconds"] = dict.fromkeys("pqr", 1.0)
    instance = Instance(read(graph))
    at = {(f"on {d}", d): Place(1.0, 2.0, (f"{d}/0",), copy=False) for d in "pqr"}
    at["a", "p"] = Place(0.0, 1.0, ("p/0",), copy=False)
    at |= {("a", d): Place(0.0, 1.0, (f"{d}/0",), copy=True) for d in "qr"}
    every = scheduled(instance, at)
    assert every is not None and every.makespan == pytest.approx(2.0) and not every.play.moves
    assert {original for _, original in every.play.instance.costed.again} == {"a", "v"}
    del at["on r", "r"]
    at["on r", "p"] = Place(2.0, 3.0, ("p/0",), copy=False)
    one = scheduled(every.play.instance, at)
    assert one is not None and {name for name, _ in places(one.play)} == {"a", "on p", "on q", "on r"}
    assert {d for name, d in places(one.play) if name == "a"} == {"p", "q"}


def test_copies_for_copies_stay_and_go_with_what_reads_them():
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
    at = {(t, "p"): Place(float(i), i + 1.0, ("p/0",), copy=False) for i, t in enumerate("abc")}
    at["d", "q"] = Place(2.0, 3.0, ("q/0",), copy=False)
    at |= {(t, "q"): Place(float(i), i + 1.0, ("q/0",), copy=True) for i, t in enumerate("ab")}
    both = scheduled(instance, at)
    assert both is not None and both.makespan == pytest.approx(3.0) and not both.play.moves
    at["d", "p"] = Place(3.0, 4.0, ("p/0",), copy=False)
    del at["d", "q"]
    none = scheduled(both.play.instance, at)
    assert none is not None and not none.play.instance.costed.again and none.makespan == pytest.approx(4.0)


@needs_native
def test_duplicates_keep_the_caps():
    """Two copies of `a` on devices that have room for one."""
    race, entry = started(fan())
    assert race.instance.tight
    found = repeated.repeated(race, entry)
    assert found.makespan == pytest.approx(1.1) and found.makespan < entry.makespan and not found.over
