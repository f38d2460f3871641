"""The examples of training loops of other libraries run, and are the plain run."""

from __future__ import annotations

import functools

import pytest
from test_examples_training import example, main
from zoo.entry import library

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
DEVICES = ("--devices", "cpu", "emulated:0")


@pytest.mark.parametrize(
    ("name", "needs", "says"),
    [
        ("hf_trainer", ["transformers", "accelerate"], "weights of the resumed run"),
        ("lightning_loop", ["lightning"], "largest difference from the plain run"),
        ("accelerate_loop", ["transformers", "accelerate"], "plan.device_map():       {"),
    ],
)
@pytest.mark.release
def test_a_framework_runs_a_compiled_model_as_the_plain_one(name, needs, says, monkeypatch, capsys):
    for library_name in needs:
        library(library_name)
    module = example(name)
    if name == "hf_trainer":
        monkeypatch.setattr(module, "bert", functools.partial(module.bert, layers=1))
        # Of so many rows all batches are whole; short ones are those of tests/uses/test_language.py.
        monkeypatch.setattr(module, "compare", functools.partial(module.compare, count=16))
    assert says in main(module, monkeypatch, capsys, *DEVICES)


@pytest.mark.slow
def test_a_run_that_is_not_the_plain_one_fails(monkeypatch, capsys):
    library("transformers")
    library("accelerate")
    module = example("accelerate_loop")
    monkeypatch.setattr(
        module, "compare", lambda *_: {"first": 1, "last": 1, "apart": 0, "weights": 1.0, "report": "r"}
    )
    with pytest.raises(AssertionError, match="not the plain run"):
        main(module, monkeypatch, capsys)
