"""`python -m autopar plan`, and how it, `bench` and `whatif` take a model: results, files, errors of one sentence."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities
from taskfiles import randomly, small

import autopar
from autopar.__main__ import main

MODEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x, *, mask=None):
        y = self.first(x)
        return self.second(y if mask is None else y * mask)
def positional(): return Net(), (torch.ones(8, 16),)
def named(): return Net(), {"x": torch.ones(8, 16), "mask": torch.ones(8, 16)}
def both(): return Net(), (torch.ones(8, 16),), {"mask": torch.ones(8, 16)}
def wrong(): return Net()
def wrong_too(): return Net(), (torch.ones(8, 16),), torch.ones(8, 16)
def fails(): raise ValueError("no weights")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the model in a folder of its own, and two files that Python cannot load."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "called.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "tasks"), [("positional", 2), ("named", 3), ("both", 3)])
def test_a_model_is_planned_for_this_machine_however_it_is_called(folder, capsys, factory, tasks):
    assert main(["plan", f"./below/called.py:{factory}", "--out", "plan.json"]) == 0
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1 and "wrote plan.json" in told.err
    plan = autopar.Plan.load("plan.json")
    assert len(plan.costed.graph.tasks) == tasks and not plan.costed.machine.absent
    # The command reads what it and Python write.
    assert main(["plan", "--load", "plan.json", "--out", "plan.svg", "--explain"]) == 0
    assert "lower bound" in capsys.readouterr().out and (folder / "plan.svg").exists()
    plan.save("again.json")
    assert (folder / "again.json").read_text() == (folder / "plan.json").read_text()


@pytest.mark.slow
def test_a_model_called_by_keyword_is_timed_and_forecast(folder, capsys):
    call = "bench below/called.py:both --rivals autopar --rounds 1 --seconds 0.1 --json found.json --train"
    assert main(call.split()) == 0
    (row,) = json.loads((folder / "found.json").read_text())["rows"]
    assert all(one["blocks"] for one in row["outcomes"])
    assert "quartiles" in capsys.readouterr().out
    words = ["--hosts", "cpu + 2 rtx-4090", "--batch", "64", "--dtype", "bf16"]
    assert main(["whatif", "below/called.py:named", *words]) == 0
    out = capsys.readouterr().out
    assert "parameters in bfloat16" in out and max(map(len, out.splitlines())) <= 100


def test_a_model_is_planned_for_a_declared_machine(folder, capsys):
    call = ["plan", "below/called.py:positional", "--out", "plan.json", "--machine"]
    assert main([*call, "cpu-16, h100-sxm,h100-sxm"]) == 0
    assert len(autopar.Plan.load("plan.json").costed.machine.devices) == 3
    capsys.readouterr()
    for machine, words in (("h1000", "h100"), ("bogus", "--machine cpu-16,h100-sxm")):
        assert main([*call, machine]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("mymodel", "is not MODULE:FACTORY"),
        (":make", "is not MODULE:FACTORY"),
        ("nothing:make", "No module named 'nothing'"),
        ("nothing.py:make", "there is no file nothing.py"),
        ("below/called.py:other", "no attribute 'other'"),
        ("below/called.py:fails", "below/called.py:16)"),
        ("broken:make", "broken.py, line 1"),
        ("failing:make", "ZeroDivisionError: division by zero"),
        ("below/called.py:wrong", "(model, (x, …)), (model, {name: x}) or (model, (x, …), {name: x})"),
        ("below/called.py:wrong_too", "(model, (x, …)), (model, {name: x}) or (model, (x, …), {name: x})"),
    ],
)
def test_a_factory_that_gives_no_model_is_refused_in_one_line(folder, monkeypatch, capsys, factory, words):
    monkeypatch.syspath_prepend(str(folder))
    assert main(["plan", factory]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def written(tmp_path, graph: Any) -> str:
    """A graph as a file."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    return str(path)


@pytest.mark.slow
def test_a_graph_is_planned_without_torch_and_alike_in_all_processes(tmp_path):
    graph, out = randomly(random.Random(7), 30), tmp_path / "plan.json"
    call = ["plan", "--graph", written(tmp_path, graph), "--out", str(out)]
    code = f"import sys; from autopar.__main__ import main; status = main({call!r}); "
    code += "assert 'torch' not in sys.modules, 'torch was loaded'; raise SystemExit(status)"
    environ = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("planned in ") and done.stderr.count("\n") == 1
    assert infeasibilities(graph, described(autopar.Plan.load(out))) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "plan.json"]
    # Strings are hashed otherwise in this process.
    there = out.read_text()
    assert main(call) == 0 and out.read_text() == there


def test_a_plan_is_written_drawn_and_explained_at_once(tmp_path, capsys):
    graph = written(tmp_path, small())
    assert main(["plan", "--graph", graph]) == 0
    shown = capsys.readouterr().out
    assert "critical path" in shown and "lower bound" in shown
    plans, lines = ["plan.json", "plan.svg", "plan.html"], ["line.svg", "line.json.gz"]
    call = ["plan", "--graph", graph, *(f"--out={tmp_path / name}" for name in plans)]
    assert main([*call, *(f"--timeline={tmp_path / name}" for name in lines), "--explain"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"graph.json", *plans, *lines}
    assert all((tmp_path / name).stat().st_size > 100 for name in (*plans, *lines))
    shown = capsys.readouterr().out
    for part in ("critical path: ", "waited for", "on gpu", "What would help most: "):
        assert part in shown
    assert main([*call, "--explain", "a", "--explain", "[bc]"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("waited for") == 3 and "It can only run on gpu" in shown
    assert main([*call, "--explain", "q"]) == 2
    assert "'q' is not a task of 'graph'" in capsys.readouterr().err


def test_the_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
    graph = re.findall(r"```json\n(.*?)```", text, re.S)[0]
    (tmp_path / "graph.json").write_text(graph)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^python -m autopar (plan --graph .*)$", text, re.M)
    assert len(commands) == 2
    for command in commands:
        assert main(command.split()) == 0
    assert infeasibilities(json.loads(graph), described(autopar.Plan.load(tmp_path / "plan.json"))) == []
    assert {"plan.html", "timeline.svg"} <= {path.name for path in tmp_path.iterdir()}
    for option in re.findall(r"^\| `(--[a-z-]+)", text, re.M):
        with pytest.raises(SystemExit):
            main(["plan", "--help"])
        assert option in capsys.readouterr().out


def task(**said: Any) -> dict[str, Any]:
    """A graph of one task."""
    return {**small(), "tasks": [{"id": "a", "seconds": {"cpu": 1}, **said}], "values": []}


def value(**said: Any) -> dict[str, Any]:
    """A graph of one value."""
    return {**small(), "values": [{"id": "v", "producer": "a", "consumers": ["c"], "bytes": 0, **said}]}


def devices(**said: Any) -> dict[str, Any]:
    """A graph whose devices are alike."""
    return {**small(), "devices": [{"name": n, "lanes": 2, **said} for n in ("cpu", "gpu")]}


BAD = {
    "a circle": (value(consumers=["a"]), "take one of these values out"),
    "an unknown task": (value(producer="q"), "there are 'a', 'b', 'c'"),
    "nearly a device": (task(pin="cpu1"), "did you mean 'cpu'?"),
    "a negative time": (task(seconds={"cpu": -1}), "must not be negative"),
    "no time": (task(seconds={"cpu": float("nan")}), "must be a finite number (seconds)"),
    "no times": (task(seconds=1), 'such as {"cpu": 1.0}'),
    "no device": (task(seconds={}), "give its seconds on at least one of cpu, gpu"),
    "times by lanes": (task(seconds={"cpu": {"3": 1}}), "it must be a number (seconds)"),
    "no room": (devices(memory_bytes=10), "set memory_bytes to "),
    "a name of two lines": (
        {**task(seconds={}), "devices": [{"name": "c\npu"}], "links": []},
        "at least one of c pu",
    ),
    "no list": ({"tasks": []}, 'needs the lists "tasks", "values", "devices" and "links"'),
    "no object": ([], "it must be an object"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_gets_one_sentence_and_leaves_what_was_there(tmp_path, capsys, what):
    out = tmp_path / "plan.json"
    out.write_text("as it was")
    assert main(["plan", "--graph", written(tmp_path, BAD[what][0]), "--out", str(out)]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.startswith("autopar plan: ") and caught.err.count("\n") == 1
    assert BAD[what][1] in caught.err
    assert out.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "plan.json"]


def test_what_cannot_be_read_or_written(tmp_path, capsys):
    assert main(["plan", "--graph", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    graph = written(tmp_path, small())
    assert main(["plan", "--graph", graph, "--budget-s", "-1"]) == 2
    assert main(["plan", "--graph", graph, "--out", str(tmp_path / "none" / "plan.json")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "plan.json").mkdir()
    assert main(["plan", "--graph", graph, "--out", str(tmp_path / "plan.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "plan.json"]


def test_a_file_of_another_form_or_version_is_refused_in_one_sentence(tmp_path, capsys):
    plan = autopar.schedule(small())
    plan.save(tmp_path / "plan.json")
    whole = (tmp_path / "plan.json").read_text()
    files = {
        "later": (whole.replace("autopar plan 1", "autopar plan 9"), "is of version '9'"),
        "cut": (whole[: len(whole) // 2], "is not JSON"),
        "foreign": ('{"nodes": []}', "it has no 'format'"),
        "graph": (json.dumps({"format": "autopar graph 1", **small()}), "it says 'autopar graph 1'"),
        "empty": ("", "is empty"),
    }
    for name, (text, said) in files.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        assert main(["plan", "--load", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line and str(path) in line
        with pytest.raises(autopar.PlanError, match=said):
            autopar.Plan.load(path)
    for name, said in (("plan", "it says 'autopar plan 1'"), ("cut", "is not JSON"), ("foreign", '"tasks"')):
        assert main(["plan", "--graph", str(tmp_path / f"{name}.json")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert autopar.schedule({"format": "autopar graph 1", **small()}).makespan == plan.makespan
    with pytest.raises(autopar.PlanError, match="of version '2'"):
        autopar.schedule({"format": "autopar graph 2", **small()})
