"""`python -m autopar bench MODULE:FACTORY` and `--suite stacks`, as a user types them."""

from __future__ import annotations

import json

import pytest
import torch

from autopar.__main__ import main
from autopar.costs import blocks
from autopar.session import compare
from tests.benchmarks.timed import stacks

MODEL = """
import torch
from torch import nn
def make(batch=4):
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(batch, 16),)
def fixed():
    return make()
def wide(width):
    return make(width)
def function():
    return torch.relu, (torch.ones(3),)
def lacking():
    import no_such_package
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(blocks, "BLOCK_S", 0.001)
    return tmp_path


@pytest.mark.slow
def test_a_model_is_timed_shown_and_written(folder, capsys):
    call = "bench mine:make --batch 2 --batch 4 --rivals autopar,eager-1 --rounds 2 --json found.json"
    assert main(call.split()) == 0
    shown = capsys.readouterr().out
    for words in ("make, batch 2", "make, batch 4", "÷ eager", "quartiles", "geometric mean", "torch 2."):
        assert words in shown
    found = json.loads((folder / "found.json").read_text())
    assert torch.__version__ in found["machine"] and not found["skipped"]
    assert [row["title"] for row in found["rows"]] == ["make, batch 2", "make, batch 4"]
    for row in found["rows"]:
        assert [one["name"] for one in row["outcomes"]] == ["eager", "eager-1", "autopar"]
        base = row["outcomes"][0]["median_s"]
        for one in row["outcomes"]:
            assert one["versions"]["torch"] and one["built_s"] > 0 and one["error"] <= 1e-5
            assert len(one["blocks"]) >= 2 and one["blocks"][0].keys() == {"seconds", "calls", "disturbed"}
            low, high = one["quartiles_s"]
            assert 0 < low <= one["median_s"] <= high
            assert one["ratio"] == pytest.approx(one["median_s"] / base)
            assert min(block["seconds"] for block in one["blocks"]) <= one["median_s"]


def test_a_training_step_is_timed(folder, capsys):
    assert (
        main(["bench", "mine:fixed", "--train", "--rivals", "autopar", "--rounds", "1", "--json", "a.json"])
        == 0
    )
    assert "fixed, training" in capsys.readouterr().out
    (row,) = json.loads((folder / "a.json").read_text())["rows"]
    assert row["train"] and [one["name"] for one in row["outcomes"]] == ["eager", "autopar"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["mine"], "'mine' is not MODULE:FACTORY; write for example mymodel:make"),
        (["nowhere:make"], "No module named 'nowhere'"),
        (["mine:fixed", "--batch", "2"], "mine:fixed takes no batch; write it as def fixed(batch=1)"),
        (["mine:wide"], "mine:wide cannot be called without arguments; write it as def wide()"),
        (["mine:function"], "bench needs an nn.Module"),
        (["mine:lacking"], "mine:lacking lacks a package: No module named 'no_such_package'; install it"),
        (["mine:make", "--rivals", "tensorrt"], "the rival 'tensorrt' is not known; there are eager,"),
        (["mine:make", "--json", "nowhere/found.json"], "does not exist; create it, or give another name"),
        (["mine:make", "--json", "."], "is a folder; give another name"),
        (["mine:make", "--devices", "cuda:97"], "no device 'cuda:97' here"),
        (["--suite", "stacks", "--devices", "cpuu"], "(did you mean 'cpu'?)"),
        (["--suite", "stacks", "--only", "alexnet"], "no model of the suite is called 'alexnet'; there are"),
    ],
)
def test_what_means_nothing_is_refused_in_one_sentence(folder, capsys, words, answer):
    assert main(["bench", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert answer in line
    assert not (folder / "found.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["mine:make", "--suite", "stacks"],
        ["--suite", "overhead"],
        ["--suite", "stacks", "--batch", "2"],
        ["mine:make", "--only", "moe"],
        ["mine:make", "--rounds", "0"],
        ["mine:make", "--seconds", "nan"],
    ],
)
def test_options_that_do_not_go_together_are_refused(folder, words):
    with pytest.raises(SystemExit) as left:
        main(["bench", *words])
    assert left.value.code == 2


@pytest.mark.release
@pytest.mark.slow
def test_a_model_of_the_suite_that_lacks_its_library_is_skipped(tmp_path, monkeypatch, capsys):
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError('no transformers')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(stacks.MODELS, "mlp784", ("2", "3"))
    call = ["--only", "bert_small", "--only", "mlp784", "--rivals", "eager-1", "--seconds", "0", "--json"]
    assert main(["bench", "--suite", "stacks", *call, str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["title"] for row in found["rows"]] == ["mlp784, batch 2", "mlp784, batch 3"]
    assert list(found["skipped"]) == ["bert_small"]
    shown = capsys.readouterr().out
    assert "bert_small skipped: " in shown and "bert_small lacks a package: no transformers" in shown
    assert "geometric mean" in shown and "mlp784, batch 3" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("moe", "resnet18") else pytest.mark.release)
        for name in stacks.MODELS
    ],
)
def test_the_answer_to_a_batch_has_its_rows_and_depends_on_them(name):
    try:
        model, args = getattr(stacks, name)(3)
    except ImportError as error:
        pytest.skip(f"needs the extra [zoo]: {error}")
    torch.manual_seed(1)
    other = getattr(stacks, name)(3)[1]
    with torch.no_grad():
        model.train(name in stacks.TRAINED)
        first, second = model(*args), model(*other)
    assert first.shape[0] == 3 and compare.error(second, first) > 1e-2
