"""Copies of runs and the places of all, found together: never longer, and no copy that nobody reads."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import instances
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import needs_native
from taskfiles import link, randomly
from test_duplicate import alone, fan, shown, wanted

from autopar.planner import place
from autopar.planner.bounds import lower_bound
from autopar.planner.candidates import Race
from autopar.planner.duplication import search as repeated
from autopar.planner.duplication.greedy import duplicate
from autopar.planner.duplication.originals import once
from autopar.planner.duplication.prune import Place, places, scheduled
from autopar.planner.formats import described, read
from autopar.planner.formats.verify import infeasibilities
from autopar.planner.lists.heft import heft
from autopar.planner.model.problem import Problem

pytestmark = pytest.mark.slow

ENDLESS = float("inf")


def started(graph: dict[str, Any]):
    """The race of a graph with one list schedule in it, and that."""
    race = Race(Problem(read(graph)))
    return race, race.enter(heft(race.problem))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_chains_make_a_plan_shorter_or_leave_it(seed):
    graph = wanted(seed, seed % 3 == 1) if seed % 3 else randomly(random.Random(seed))
    race, entry = started(graph)
    bound = lower_bound(race.problem)
    found = repeated.repeated(race, entry, bound, ENDLESS)
    assert bound <= found.makespan * (1 + 1e-9) and not found.over
    assert found.makespan <= duplicate(entry, bound).makespan <= entry.makespan
    assert alone(found.play) and once(found.play.problem.costed) == race.problem.costed
    plan = described(replace(place(read(graph), "heft"), costed=found.play.problem.costed, **shown(found)))
    assert infeasibilities(graph, json.loads(json.dumps({**plan, "lower_bound_s": 0.0}))) == []
    # Nothing is drawn but by number.
    assert repeated.repeated(race, entry, bound, ENDLESS).makespan == found.makespan


@needs_native
def test_where_runs_are_and_what_is_copied_are_found_together(monkeypatch):
    """Copies in the plan that was found without any are worth less on most graphs where they are worth something."""
    shorter = 0
    for seed in (14, 24, 27, 37):
        costed = read(instances.small(seed))
        together = place(costed, copies=True).makespan
        with monkeypatch.context() as patched:
            patched.setattr(repeated, "winners", lambda *args, **keywords: [])
            apart = place(costed, copies=True).makespan
        assert together <= apart
        shorter += together < 0.99 * apart
    assert shorter >= 2


def test_nothing_more_is_tried_at_the_bound_or_after_the_time(monkeypatch):
    race, entry = started(wanted(7))
    monkeypatch.setattr(repeated, "duplicate", None)
    assert repeated.repeated(race, entry, entry.makespan, ENDLESS) is entry
    assert repeated.repeated(race, entry, 0.0, 0.0) is entry


@pytest.mark.parametrize("why", ["large", "several lanes", "nothing to move"])
def test_no_list_is_begun_where_none_is_of_use(monkeypatch, why):
    graph = wanted(7)
    if why == "nothing to move":
        graph["links"] = [{**one, "latency_s": 0.0} for one in graph["links"]]
        graph["values"] = [{**one, "bytes": 0} for one in graph["values"]]
    race, entry = started(graph)
    if why == "large":
        monkeypatch.setattr(repeated, "repeats", lambda entry: False)
    if why == "several lanes":
        race.problem.modes = {(0, 0): ((1, 1.0),)}
    monkeypatch.setattr(repeated, "winners", None)
    assert repeated.repeated(race, entry, 0.0, ENDLESS).makespan == duplicate(entry, 0.0).makespan


def test_copies_that_nobody_reads_are_left_out():
    graph = fan()
    for task in graph["tasks"]:
        task["seconds"] = dict.fromkeys("pqr", 1.0)
    problem = Problem(read(graph))
    at = {(f"on {d}", d): Place(1.0, 2.0, (f"{d}/0",), copy=False) for d in "pqr"}
    at["a", "p"] = Place(0.0, 1.0, ("p/0",), copy=False)
    at |= {("a", d): Place(0.0, 1.0, (f"{d}/0",), copy=True) for d in "qr"}
    every = scheduled(problem, at)
    assert every is not None and every.makespan == pytest.approx(2.0) and not every.play.moves
    assert {original for _, original in every.play.problem.costed.again} == {"a", "v"}
    del at["on r", "r"]
    at["on r", "p"] = Place(2.0, 3.0, ("p/0",), copy=False)
    one = scheduled(every.play.problem, at)
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
    problem = Problem(read(graph))
    at = {(t, "p"): Place(float(i), i + 1.0, ("p/0",), copy=False) for i, t in enumerate("abc")}
    at["d", "q"] = Place(2.0, 3.0, ("q/0",), copy=False)
    at |= {(t, "q"): Place(float(i), i + 1.0, ("q/0",), copy=True) for i, t in enumerate("ab")}
    both = scheduled(problem, at)
    assert both is not None and both.makespan == pytest.approx(3.0) and not both.play.moves
    at["d", "p"] = Place(3.0, 4.0, ("p/0",), copy=False)
    del at["d", "q"]
    none = scheduled(both.play.problem, at)
    assert none is not None and not none.play.problem.costed.again and none.makespan == pytest.approx(4.0)
