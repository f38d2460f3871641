"""Contests: who is wrong, absent, late or broken is named and never timed, and nobody ends the run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from autopar.bench.contest import contest
from autopar.bench.rivals import RIVALS, TRAINERS, Case, Entrant, Rival, chosen, inference, run
from autopar.costs import blocks
from autopar.errors import AutoparError

QUICK = {"rounds": 1, "timing_s": 1.0}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_S", 0.001)
    monkeypatch.setattr(blocks, "SETTLE_S", 0.0)
    monkeypatch.setattr(blocks, "elsewhere", lambda: 0.0)


@pytest.fixture
def case():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return Case(model, (torch.randn(4, 8),))


def outcome(case, rival):
    """The rival's, in a contest with eager."""
    row = contest("case", case, [Rival("eager", run), rival], **QUICK)
    assert row.outcomes[0].blocks
    return row.outcomes[1]


def rigged(change, calls):
    """A rival that makes another answer of eager's, and notes the calls that are timed."""

    def build(case):
        fair = inference(case, lambda *args: change(case.model(*args)))
        return Entrant(lambda: calls.append(1), fair.answers)

    return Rival("rigged", build)


def test_who_is_right_is_timed(case):
    calls = []
    found = outcome(case, rigged(lambda y: y * (1 + 1e-6), calls))
    assert found.blocks and calls and not found.reason and found.built_s >= 0 and 0 < found.error < 1e-5


def test_what_serves_after_the_timing_is_asked(case):
    calls = []

    def build(case):
        fair = inference(case, case.model)
        return replace(fair, call=lambda: calls.append(1), serving=lambda: f"kernels, {min(len(calls), 2)}")

    assert outcome(case, Rival("several", build)).serving == "kernels, 2"


@pytest.mark.parametrize(
    "change",
    [lambda y: y * 1.001, lambda y: y.double(), lambda y: y[:2], lambda y: [y, y], lambda y: y * torch.nan],
    ids=["value", "dtype", "shape", "count", "nan"],
)
def test_who_is_wrong_is_never_timed(case, change):
    calls = []
    found = outcome(case, rigged(change, calls))
    assert not found.blocks and not calls
    assert found.remark().startswith("WRONG: ") and found.error != float("inf")


def test_an_answer_computed_ahead_is_found_out(case):
    kept = []

    def remembered(y):
        kept.append(y.clone())
        return kept[0]

    assert outcome(case, rigged(remembered, [])).remark().startswith("WRONG: answer 1: error")


@pytest.mark.parametrize(("far", "right"), [(0.0, True), (0.2, False)])
def test_what_the_last_bits_decide_may_differ(far, right):
    class Chaotic(nn.Module):
        """The sines of large numbers, of which float32 has few digits."""

        def forward(self, x):
            return (x * 1e3).sin()

    case = Case(Chaotic(), (torch.linspace(0.01, 3, 64),))
    exact = Rival("exact", lambda case: inference(case, lambda x: (x.double() * 1e3).sin().float() + far))
    found = outcome(case, exact)
    assert found.error > 2e-5 and bool(found.blocks) == right


def test_what_is_not_installed_is_named(case):
    found = outcome(case, Rival("absent", run, ("torch", "no_such_package"), "absent"))
    assert found.remark() == "no_such_package is not installed; pip install 'autopar[absent]'"
    assert not found.blocks and found.built_s is None


def test_who_fails_is_named_with_one_line(case):
    def build(case):
        raise ValueError("\n no such operator: aten::odd\nand a page more")

    assert outcome(case, Rival("broken", build)).remark() == "failed: ValueError: no such operator: aten::odd"


def test_who_builds_too_long_is_stopped(case):
    def build(case):
        try:
            time.sleep(60)
        except Exception:
            raise AssertionError("a compiler that catches every Exception goes on") from None

    began = time.monotonic()
    row = contest("case", case, [Rival("eager", run), Rival("slow", build)], **QUICK, build_s=0.2)
    assert row.outcomes[1].remark() == "not built within 200 ms" and time.monotonic() - began < 30


@pytest.mark.parametrize("train", [False, True])
def test_random_answers_are_refused(train):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x))

    rivals = TRAINERS if train else RIVALS
    with pytest.raises(AutoparError, match=r"the answers of noise differ from call to call.*dropout"):
        contest("noise", Case(Noisy(), (torch.randn(8, 4),), train=train), rivals[:1], **QUICK)


def test_a_model_that_fails_is_said_to(case):
    with pytest.raises(AutoparError, match=r"case fails as it is: RuntimeError: .*mat1 and mat2"):
        contest("case", Case(case.model, (torch.randn(4, 9),)), RIVALS[:1], **QUICK)


@pytest.mark.slow
def test_training_leaves_the_model_as_it_was(case):
    before = [tensor.clone() for tensor in case.model.state_dict().values()]
    row = contest("case", replace(case, train=True), chosen(["autopar", "autopar-step"], TRAINERS), **QUICK)
    assert [one.name for one in row.outcomes if one.blocks] == ["eager", "autopar", "autopar-step"]
    assert all(map(torch.equal, before, case.model.state_dict().values()))


def test_a_wrong_gradient_is_found_out(case):
    def scaled(model):
        """An answer that is right, and a gradient that is not."""
        return lambda x: model(x) * 1.01 - (model(x) * 0.01).detach()

    found = contest(
        "case",
        replace(case, train=True),
        [*TRAINERS[:1], Rival("scaled", lambda case: run(case, scaled))],
        **QUICK,
    ).outcomes[1]
    assert not found.blocks and "WRONG: answer 1: error" in found.remark()
