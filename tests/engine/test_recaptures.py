"""A constant that changes from call to call has a model captured again and again: it is named before and at the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import dynamo_private, recaptures
from autopar.capture.recaptures import changing

pytestmark = pytest.mark.slow

X = torch.randn(4, 3)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(3, 3), "x"

    def forward(self, x: torch.Tensor, by: str = "x") -> torch.Tensor:
        return self.linear(x) * (len(by) * len(self.factor))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dynamo_private._SETTINGS, "recompile_limit", 4)
    monkeypatch.setattr(recaptures, "LIMIT", 4)
    monkeypatch.setattr(recaptures, "SOON", 2)


def test_a_text_given_to_a_model_is_named_and_later_calls_say_why_they_run_as_written(few: Any, caplog):
    model = Scaled()
    fast = autopar.compile(model, ["cpu"])
    for number in range(2):
        fast(X, by="x" * number)
    assert not caplog.text
    for number in range(2, 6):
        assert torch.equal(fast(X, by="x" * number), model(X, by="x" * number))
    assert caplog.text.count("kwargs['by'], read at") == 1 and "pass a tensor" in caplog.text
    assert "captured 4 times, since kwargs['by'] changes from call to call" in fast.explain()
    assert "captured 4 times" in caplog.text
    fast.close()


def test_an_attribute_that_changes_is_named(few: Any, caplog):
    model = Scaled()
    fast = autopar.compile(model, ["cpu"])
    for number in range(4):
        model.factor = "x" * number
        fast(X)
    assert "model.factor, read at" in caplog.text and "test_recaptures.py" in caplog.text
    fast.close()


def test_a_step_says_what_to_type(few: Any, caplog):
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(
        model,
        None,
        optimizer,
        ["cpu"],
        step_fn=lambda model, x, weight: model(x).square().mean() * len(weight),
    )
    for number in range(4):
        step(X, "x" * number)
    assert "args[1], read at" in caplog.text
    with pytest.raises(autopar.CaptureError, match=r"captured 4 times, since args\[1\] changes.* a tensor"):
        step(X, "x" * 9)
    # What was captured serves on.
    step(X, "x")
    step.close()


def test_a_number_is_captured_once_more(few: Any, caplog):
    class Times(Scaled):
        def forward(self, x, by):
            return self.linear(x) * by

    fast = autopar.compile(Times(), ["cpu"])
    for number in range(6):
        fast(X, by=number / 8)
    assert not caplog.text and "captured 2 graphs" in fast.explain()
    fast.close()


@pytest.mark.parametrize(
    ("guards", "name"),
    [
        (["L['args'][1] == 0.1  # x  # a.py:3 in f", "L['args'][1] == 0.2  # x  # a.py:3 in f"], "args[1]"),
        (["L['function']._modules['top'].rate == 2  # y # z  # a.py:3 in f"], "model.top.rate"),
        (["not L['self'].kept  # x  # a.py:3", "len(L['self'].kept) == 1  # x  # a.py:3"], "self.kept"),
        (["L['args'][1] == 0.1  # x  # a.py:3", "L['args'][0] == 0.2  # x  # a.py:3"], ""),
        (["L['args'][0].size()[0] == 3  # x  # a.py:3"], ""),
        (["tensor 'L['args'][0]' dtype mismatch. expected Float, actual Double"], ""),
        (["___check_type_id(L['args'][0], 7)  # x  # a.py:3", ""], ""),
        ([], ""),
    ],
)
def test_only_one_changing_constant_is_named(guards: list[str], name: str):
    assert changing(guards) == (name, "a.py:3" if name else "")
