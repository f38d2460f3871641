"""The planner's bench: what its parts compare is comparable, and what they judge is judged."""

import math

import pytest
from benchmarks import (
    feasible,
    planted,
    small,
    stg,
)
from benchmarks.judging import Asked


@pytest.fixture
def folder(tmp_path):
    """Two task graphs of the Standard Task Graph set's form with their optima: a chain beside a task, and a fork."""
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "a.stg").write_text("3\n0 0 0\n1 4 1 0\n2 3 1 1\n3 5 1 0\n4 0 2 2 3\n# remarks\n")
    (tmp_path / "3" / "b.stg").write_text("3\n1 2 0\n2 2 1 1\n3 2 1 1\n")
    (tmp_path / "optima3.csv").write_text("3/a.stg,2,7\n3/b.stg,1,6\n3/b.stg,2,4\n")
    return tmp_path


def test_every_graph_of_the_set_is_planned_and_both_are_held_against_its_optimum(folder, capsys):
    found = stg.run(Asked(folder, 3))
    assert sorted(found["instances"]) == ["a.stg on 2", "b.stg on 1", "b.stg on 2"]
    for own in found["instances"].values():
        assert own["gap"] == pytest.approx(0, abs=1e-9)
        assert own["bound"] <= 1e-9
        assert own["list"] >= -1e-9
        assert not own["wrong"]
    assert "at the optimum, goal ≥ 97.00%: 100.00%, met" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_random_graphs_counts_every_outcome(capsys):
    found = feasible.run(Asked(seeds=6))
    assert sum(found["kinds"].values()) == 6
    assert not found["bad"]
    assert "1 of them planned a second time" in capsys.readouterr().out


def test_what_is_wrong_with_a_plan_is_told(monkeypatch):
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
    found = planted.run(Asked())
    assert len(found["instances"]) == 6
    for own in found["instances"].values():
        assert own["bound"] <= 1e-9
        assert all(own[name] >= -1e-9 for name in ("autopar", *planted.RIVALS))


def test_optima_are_reached_by_no_plan_of_whole_tasks(monkeypatch):
    monkeypatch.setattr(small, "REDUCED", 3)
    found = small.run(Asked())
    assert len(found["instances"]) == 3
    for own in found["instances"].values():
        assert -1e-6 <= own["gap"] <= own["heft_gap"] + 1e-9
        assert not own["wrong"]
