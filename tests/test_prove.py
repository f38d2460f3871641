"""Small plans are proven where OR-tools is there, and left as they are where it is not."""

import math

import pytest
from graphs import chain, machine, random_dag

from autopar.bench.instances import small
from autopar.formats import read
from autopar.placement import place, prove
from autopar.placement.anneal import STEPS
from autopar.placement.heft import heft
from autopar.placement.race import Race
from autopar.problem import Problem


def start(problem: Problem):
    """A race with HEFT's plan in it."""
    race = Race(problem)
    return race, race.enter(heft(problem))


@pytest.mark.parametrize("seed", [3, 12])
def test_the_bound_comes_up_to_a_plan_no_longer(seed):
    pytest.importorskip("ortools")
    race, first = start(Problem(read(small(seed))))
    chosen, bound = prove.prove(race, first, 0.0, math.inf)
    assert bound <= chosen.makespan * (1 + 1e-9) <= first.makespan * (1 + 1e-9)
    assert chosen.makespan <= bound * (1 + 1e-3)
    assert chosen in race.entries


def test_nothing_is_tried_in_vain(monkeypatch):
    called = []
    monkeypatch.setattr(prove, "proofs", lambda *args, **more: called.append(args))
    long = Problem(chain(prove.RUNS + 1, machine(1)))
    race, first = start(long)
    assert prove.prove(race, first, 0.0, math.inf) == (first, 0.0)
    race, first = start(Problem(random_dag(1)))
    assert prove.prove(race, first, first.makespan, math.inf) == (first, 0.0)
    assert prove.prove(race, first, 0.0, 0.0) == (first, 0.0)
    monkeypatch.setattr(prove, "find_spec", lambda name: None)
    assert prove.prove(race, first, 0.0, math.inf) == (first, 0.0)
    assert not called


def test_the_bound_of_a_plan_allows_copies(monkeypatch):
    """What proves that nothing is shorter knows of no run done twice; 14 gains by one."""
    pytest.importorskip("ortools")
    monkeypatch.setattr(prove, "held", lambda *args, **more: ())
    for seed in (3, 14):
        plan = place(read(small(seed)), steps=STEPS // 10, copies=True)
        without = place(read(small(seed)), steps=STEPS // 10)
        assert plan.lower_bound <= plan.makespan <= without.makespan * (1 + 1e-9)
        assert plan.lower_bound <= plan.bound_once
        if plan.costed.again:
            assert plan.makespan < without.makespan
        else:
            assert plan.bound_once <= plan.makespan * (1 + 1e-9)
