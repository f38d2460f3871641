"""Small plans are proven where OR-tools is there, and left as they are where it is not."""

import importlib
import math

import pytest
from benchmarks.instances import small
from graphs import chain, machine, random_dag

from autopar.planner import exact, place
from autopar.planner import portfolio as search
from autopar.planner.candidates import Race
from autopar.planner.formats import read
from autopar.planner.lists.heft import heft
from autopar.planner.model.instance import Instance
from autopar.planner.search.anneal import STEPS


def start(instance: Instance):
    """A race with HEFT's plan in it."""
    race = Race(instance)
    return race, race.enter(heft(instance))


@pytest.mark.parametrize("seed", [3, 12])
def test_the_bound_comes_up_to_a_plan_no_longer(seed):
    pytest.importorskip("ortools")
    race, first = start(Instance(read(small(seed))))
    chosen, bound, cut = exact.prove(race, first)
    assert not cut
    assert bound <= chosen.makespan * (1 + 1e-9) <= first.makespan * (1 + 1e-9)
    assert chosen.makespan <= bound * (1 + 1e-3)
    assert chosen in race.entries


@pytest.mark.slow
def test_work_at_its_prices_proves_more_for_the_same_effort(monkeypatch):
    proof = pytest.importorskip("autopar.planner.exact.proof")
    instance = Instance(read(small(36)))
    first = heft(instance)

    def proved():
        *_, last = proof.proofs(instance, first, 0.3)
        return last.best.makespan / last.bound

    with_prices = proved()
    monkeypatch.setattr(proof, "weigh", lambda model, price: None)
    assert with_prices < proved()


def test_nothing_is_tried_in_vain(monkeypatch):
    called = []
    proof = pytest.importorskip("autopar.planner.exact.proof")
    monkeypatch.setattr(proof, "proofs", lambda *args, **more: called.append(args))
    long = Instance(chain(exact.CLUSTERS + 1, machine(1)))
    race, first = start(long)
    assert exact.prove(race, first) == (first, 0.0, False)
    race, first = start(Instance(random_dag(1)))
    race.bound = first.makespan
    assert exact.prove(race, first) == (first, 0.0, False)
    race.bound, race.until = 0.0, 0.0
    assert exact.prove(race, first) == (first, 0.0, True)
    race.until = math.inf
    monkeypatch.setattr(exact, "find_spec", lambda name: None)
    assert exact.prove(race, first) == (first, 0.0, False)
    assert not called


@pytest.mark.slow
def test_the_bound_of_a_plan_allows_copies():
    """What proves that nothing is shorter knows of no cluster done twice; 14 gains by one."""
    pytest.importorskip("ortools")
    for seed in (3, 14):
        plan = place(read(small(seed)), steps=STEPS // 10, copies=True)
        without = place(read(small(seed)), steps=STEPS // 10)
        assert plan.lower_bound <= plan.makespan <= without.makespan * (1 + 1e-9)
        assert plan.lower_bound <= plan.bound_once
        if plan.costed.again:
            assert plan.makespan < without.makespan
        else:
            assert plan.bound_once <= plan.makespan * (1 + 1e-9)


@pytest.mark.slow
def test_copies_do_not_wait_for_a_proof(monkeypatch):
    """A proof that has no time is said to be cut short, and the plan is the one that copies had made shorter."""
    graph = read(small(14))
    monkeypatch.setattr(search, "prove", lambda race, chosen: (chosen, 0.0, True))
    plan = place(graph, steps=STEPS // 10, copies=True)
    assert plan.costed.again and plan.stopped == "time"
    monkeypatch.undo()
    assert place(graph, steps=STEPS // 10, copies=True).makespan <= plan.makespan * (1 + 1e-9)


@pytest.mark.parametrize("takes", [0.1, 0.9])
def test_no_effort_is_begun_that_would_end_late(takes, monkeypatch):
    """By a clock that only what is made before a model turns on: the ceiling counts from before that, and what is left
    is for efforts only if it is more than that took."""
    pytest.importorskip("ortools")
    proof = importlib.import_module("autopar.planner.exact.proof")
    now, asked, around = [0.0], [], proof.paths

    def paths(instance, once):
        now[0] += takes
        return around(instance, once=once)

    monkeypatch.setattr(proof.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(proof, "paths", paths)
    monkeypatch.setattr(
        proof._Proof, "_solved", lambda self, units, effort: asked.append(self._until) or True
    )
    made = Instance(read(small(3)))
    begun = proof._Proof(made, heft(made), 0.0, 1.0, budget_s=1.0)
    assert begun.late == (takes > 0.5)
    begun.solve(1.0)
    assert asked == ([] if begun.late else [1.0] * len(proof.STAGES))
