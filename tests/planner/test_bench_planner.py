"""The planner's bench: what its parts compare is comparable, and what they judge is judged."""

import math

import pytest
from benchmarks import feasible, planted, small
from benchmarks.__main__ import main


@pytest.mark.slow
def test_a_run_of_random_graphs_counts_every_outcome(capsys):
    found = feasible.run(6)
    assert sum(found["kinds"].values()) == 6
    assert not found["bad"]
    assert "1 of them planned a second time" in capsys.readouterr().out


def test_the_bench_names_faults_of_plans(monkeypatch):
    seed = next(n for n in range(99) if feasible.attempt(n)[0] == "planned")
    with monkeypatch.context() as patch:
        patch.setattr("autopar.planner.portfolio.lower_bound", lambda instance, enough: math.inf)
        assert feasible.attempt(seed)[0] == "below the bound"
    monkeypatch.setattr(feasible, "replay", lambda graph, plan: {"makespan_s": 2 * plan["makespan_s"] + 1})
    assert feasible.attempt(seed)[0] == "late"
    monkeypatch.setattr(
        feasible, "infeasibilities", lambda graph, plan: ["d0 holds 2 bytes at 0 s and has 1"]
    )
    assert feasible.attempt(seed)[0] == "above a cap"
    monkeypatch.setattr(feasible, "described", lambda plan: 1 / 0)
    assert feasible.attempt(seed)[0] == "fails"


def test_planted_figures_are_above_the_optimum(monkeypatch):
    monkeypatch.setattr(planted, "REDUCED", ((12, 2),))
    found = planted.run()
    assert len(found["instances"]) == 6
    for own in found["instances"].values():
        assert own["bound"] <= 1e-9
        assert all(own[name] >= -1e-9 for name in ("autopar", *planted.RIVALS))


def test_optima_are_reached_by_no_plan_of_whole_tasks(monkeypatch):
    monkeypatch.setattr(small, "REDUCED", 3)
    found = small.run()
    assert len(found["instances"]) == 3
    for own in found["instances"].values():
        assert -1e-6 <= own["gap"] <= own["heft_gap"] + 1e-9
        assert not own["wrong"]


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit) as left:
        main(["sgt"])
    assert left.value.code == 2 and "there is no part sgt; give one of small" in capsys.readouterr().err
