"""Commands take a model however it is called, on this machine by default, and read and write one form of each file."""

import json

import pytest
from taskfiles import small

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
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "called.py").write_text(MODEL)
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


@pytest.mark.parametrize("factory", ["wrong", "wrong_too"])
def test_another_answer_of_a_factory_is_refused_with_the_three_that_are_taken(folder, capsys, factory):
    assert main(["plan", f"below/called.py:{factory}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "(model, (x, …)), (model, {name: x}) or (model, (x, …), {name: x})" in line


@pytest.mark.slow
def test_a_model_called_by_keyword_is_timed_and_forecast(folder, capsys):
    call = "bench below/called.py:both --rivals autopar --rounds 1 --seconds 0.1 --json found.json"
    for train in ([], ["--train"]):
        assert main([*call.split(), *train]) == 0
        (row,) = json.loads((folder / "found.json").read_text())["rows"]
        assert all(one["blocks"] for one in row["outcomes"])
    shown = capsys.readouterr().out
    assert "●" in shown and "quartiles" in shown
    for dtype, name in (("bf16", "bfloat16"), ("fp16", "float16"), ("float32", "float32")):
        words = ["--hosts", "cpu + 2 rtx-4090", "--batch", "64", "--dtype", dtype]
        assert main(["whatif", "below/called.py:named", *words]) == 0
        out = capsys.readouterr().out
        assert f"parameters in {name}" in out and max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("command", [["plan"], ["bench"], ["whatif", "a:b"], ["doctor", "--bogus"], ["-v"]])
def test_a_wrong_call_gets_one_line_with_the_way_to_help(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main(command)
    told = capsys.readouterr()
    assert ended.value.code == 2 and not told.out
    (line,) = told.err.splitlines()
    assert line.startswith("autopar") and "usage" not in line and line.endswith("--help lists all options")


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
