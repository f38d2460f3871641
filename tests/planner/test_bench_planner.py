"""The planner's bench: what its parts compare is comparable, and what they judge is judged."""

import importlib.util
import json
import math

import pytest
from benchmarks import (
    PARTS,
    feasible,
    planted,
    run,
    scale,
    small,
    stg,
)
from benchmarks.judging import Asked, Goal, by_direction, by_policy, percentile, unwired
from benchmarks.varied import varied

from autopar.errors import PlanError
from autopar.planner.formats import read


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


def test_rows_are_drawn_evenly():
    rows = [("", n, 0.0) for n in range(10)]
    assert [row[1] for row in stg.evenly(rows, 5)] == [0, 2, 4, 6, 8]
    assert stg.evenly(rows, 20) == rows


def test_a_folder_without_optima_is_refused(tmp_path):
    with pytest.raises(PlanError, match=r"optima"):
        stg.run(Asked(tmp_path, 1))


def test_a_goal_says_whether_it_is_met():
    assert str(Goal("share", 0.5, 0.7, least=True)) == "share, goal ≥ 70.00%: 50.00%, NOT MET"
    assert str(Goal("gap", 0.01, 0.01)).endswith("met")
    assert Goal("gap", None, 0.01).met is None
    assert percentile([3, 1, 2, 4, 5, 6, 7, 8, 9, 10], 0.9) == 9
    assert percentile([1.0], 0.9) == 1.0


def test_policies_and_wires():
    graph = varied(3)
    assert {link["wire"] for link in unwired(graph)["links"]} <= {None}
    assert not any("wire" in link for link in by_direction(graph)["links"])
    plain = {**graph, "devices": [{**device, "memory_bytes": None} for device in graph["devices"]]}
    assert by_policy(plain, "heft", read(plain)).wrong == ()


@pytest.mark.parametrize("seed", range(20))
def test_varied_graphs_are_graphs_and_the_same_each_time(seed):
    graph = json.loads(json.dumps(varied(seed)))
    assert graph == varied(seed)
    read(graph)


@pytest.mark.parametrize("shape", scale.SHAPES)
def test_shapes_have_the_tasks_asked_for(shape):
    graph = scale.SHAPES[shape](300)
    assert len(graph["tasks"]) == 300
    assert len(graph["devices"]) == scale.DEVICES
    read(graph)


@pytest.mark.slow
def test_a_process_measures_one_graph():
    held = b"x" * 200_000_000
    own = scale._measured("chains", 64)
    assert len(held) / 1e6 > own["peak"] >= own["before"] > 0
    assert own["cost"] > 0
    assert own["wrong"] == 0


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


def test_parts_are_found_by_name(capsys):
    found = run(["stg"])
    assert list(found) == ["stg"]
    assert "--graphs FOLDER" in capsys.readouterr().out
    assert all(importlib.util.find_spec(name, "benchmarks") for name in PARTS.values())


def test_an_unknown_part_is_refused():
    with pytest.raises(PlanError, match=r"there is no part sgt; give one of small"):
        run(["sgt"])


def test_optima_are_reached_by_no_plan_of_whole_tasks(monkeypatch):
    monkeypatch.setattr(small, "REDUCED", 3)
    found = small.run(Asked())
    assert len(found["instances"]) == 3
    for own in found["instances"].values():
        assert -1e-6 <= own["gap"] <= own["heft_gap"] + 1e-9
        assert not own["wrong"]
