"""`python -m autopar plan --graph`: a plan of a file, without torch, and status 2 with one sentence for bad files."""

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


def written(tmp_path, graph: Any) -> str:
    """A graph as a file."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    return str(path)


@pytest.mark.slow
def test_a_plan_of_a_file_is_made_without_torch(tmp_path):
    out = tmp_path / "plan.json"
    call = ["plan", "--graph", written(tmp_path, small()), "--out", str(out), "--budget-s", "60"]
    code = f"import sys; from autopar.__main__ import main; status = main({call!r}); "
    code += "assert 'torch' not in sys.modules, 'torch was loaded'; raise SystemExit(status)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("planned in ") and done.stderr.count("\n") == 1
    assert infeasibilities(small(), described(autopar.Plan.load(out))) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "plan.json"]


def test_a_plan_without_a_file_is_explained(tmp_path, capsys):
    assert main(["plan", "--graph", written(tmp_path, small())]) == 0
    shown = capsys.readouterr().out
    assert "critical path" in shown and "lower bound" in shown


def test_a_plan_of_a_file_is_drawn(tmp_path):
    for suffix in ("svg", "html", "dot"):
        out = tmp_path / f"plan.{suffix}"
        assert main(["plan", "--graph", written(tmp_path, small()), "--out", str(out)]) == 0
        assert out.stat().st_size > 500


def test_a_plan_is_written_drawn_and_explained_at_once(tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("plan.json", "plan.svg", "line.svg", "line.json.gz")]
    call = ["plan", "--graph", written(tmp_path, small()), "--out", names[0], "--out", names[1]]
    assert main([*call, "--timeline", names[2], "--timeline", names[3], "--explain"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["graph.json", *(os.path.basename(name) for name in names)]
    )
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
    assert main(["plan", "--graph", graph, "--out", str(tmp_path / "none" / "plan.json")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "plan.json").mkdir()
    assert main(["plan", "--graph", graph, "--out", str(tmp_path / "plan.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "plan.json"]


def test_words_it_does_not_know(tmp_path, capsys):
    graph = written(tmp_path, small())
    assert main(["plan", "--graph", graph, "--budget-s", "-1"]) == 2
    for argv in (
        ["plan"],
        ["plan", "a:b", "--graph", graph],
        ["plan", "--graph", graph, "--machine", "cpu"],
        ["plan", "a:b", "--machine", "cpu", "--budget-s", "2"],
        ["plan", "--load", graph, "--machine", "cpu"],
        ["plan", "--load", graph, "--graph", graph],
    ):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()[-1:]
        assert line.startswith("autopar plan: ") and line.endswith("--help lists all options")


@pytest.mark.slow
def test_the_plan_does_not_depend_on_how_strings_are_hashed(tmp_path):
    graph = written(tmp_path, randomly(random.Random(7), 30))
    found = set()
    for seed in ("0", "1"):
        out = tmp_path / f"{seed}.json"
        call = [sys.executable, "-m", "autopar", "plan", "--graph", graph, "--out", str(out)]
        subprocess.run(call, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        found.add(out.read_text())
    assert len(found) == 1
