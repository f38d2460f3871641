"""Seconds of operations by default, and plans from what recorded calls took."""

import pytest
import torch
from compilers import apart
from torch import nn

import autopar
from autopar.costs import measure as measuring
from autopar.engine.tune import Tuned, _Round
from autopar.errors import PlanError

EMULATED = ["cpu", "emulated:0", "emulated:1"]


class Wide(nn.Module):
    """Branches that need nothing of each other."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)) for _ in range(4)
        )

    def forward(self, x):
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Wide().eval()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    apart(tmp_path, monkeypatch)


def how(plan):
    return {cost.how for cost in plan.costed.costs if not plan.costed.graph.task[cost.task].free}


def called(model, devices, **options):
    with torch.no_grad():
        fast = autopar.compile(model, devices, **options)
        x = torch.randn(16, 64)
        assert torch.allclose(fast(x), model(x), atol=1e-5)
    return fast


def test_one_lane_is_timed_when_it_is_explained_and_not_when_it_is_called(model):
    fast = called(model, ["cpu"])
    assert how(fast.plan) == {"roofline"}
    program, text = str(fast.program), fast.explain()
    assert how(fast.plan) == {"measured"} and str(fast.program) == program
    assert fast.plan.makespan >= fast.plan.lower_bound and "the plan given" not in text
    x = torch.randn(16, 64)
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)


@pytest.mark.slow
def test_what_decides_between_lanes_is_measured_at_the_first_call(model):
    assert "measured" in how(called(model, ["cpu*2"]).plan)
    assert how(called(model, ["cpu*2"], measure=False).plan) == {"roofline"}
    assert how(called(model, EMULATED).plan) == {"roofline"}


def test_nothing_is_measured_where_the_user_refuses(model):
    fast = called(model, ["cpu"], measure=False)
    fast.explain()
    assert how(fast.plan) == {"roofline"}


@pytest.mark.slow
def test_a_plan_ahead_is_of_measured_operations_where_the_machine_is_here(model):
    given = (torch.randn(16, 64),)
    with torch.no_grad():
        assert how(autopar.plan(model, ["cpu"], example_inputs=given)) == {"measured"}
        assert how(autopar.plan(model, ["cpu"], example_inputs=given, measure=False)) == {"roofline"}
        machine = autopar.Machine.declare("cpu", "t4")
        assert how(autopar.plan(model, machine, example_inputs=given)) == {"roofline"}


def test_a_call_has_seconds_of_its_own_beside_the_makespan(model):
    fast = called(model, ["cpu"])
    plan = fast.plan
    assert plan.costed.call_s > 0 and plan.makespan == pytest.approx(
        sum(run.seconds[0] for run in plan.costed.clusters)
    )
    assert "and a call's own" in fast.explain()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu*2"], EMULATED, pytest.param(["cpu"], marks=pytest.mark.release)])
def test_tuning_ends_with_a_plan_that_is_proved_and_answers_alike(model, devices):
    fast = called(model, devices)
    with torch.no_grad():
        x = torch.randn(16, 64)
        found = fast.tune(x, rounds=3, calls=3)
        assert torch.allclose(fast(x), model(x), atol=1e-5)
    assert 1 <= len(found.rounds) <= 3 and found.after <= found.before
    plan = fast.plan
    assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
    assert "measured" in how(plan) and "stays" in str(found)


def test_costs_after_tuning_are_what_was_recorded_and_the_clock_is_the_declared_one(model, monkeypatch):
    real, noted = measuring.medians, {}
    monkeypatch.setattr(
        "autopar.engine.tune.measuring.medians", lambda *given: noted.update(real(*given)) or {**noted}
    )
    fast = called(model, autopar.Machine.emulate("cpu", "t4", "t4"))
    declared = fast.plan.makespan
    with torch.no_grad():
        fast.tune(torch.randn(16, 64), rounds=1, calls=3)
    plan = fast.plan
    for placed in plan.placed:
        at = plan.costed.index[placed.device]
        for task in plan.costed.cluster[placed.cluster].tasks:
            assert plan.costed.cost[task].seconds[at] == pytest.approx(noted[task, placed.device])
    # Runs last as declared; between two tasks of one the clock does not look.
    assert plan.makespan == pytest.approx(declared, rel=0.3)


def test_seconds_that_were_recorded_move_work_to_where_it_is_quicker(model, monkeypatch):
    fast = called(model, EMULATED, policy="auto", split=None)
    real, slow = (
        measuring.medians,
        "emulated:0" if "emulated:0" in {p.device for p in fast.plan.placed} else "cpu",
    )

    def told(plan, timelines):
        return {key: 0.5 if key[1] == slow else took for key, took in real(plan, timelines).items()}

    monkeypatch.setattr("autopar.engine.tune.measuring.medians", told)
    with torch.no_grad():
        found = fast.tune(torch.randn(16, 64), rounds=2, calls=3)
    assert len(found.rounds) == 2


@pytest.mark.slow
def test_tuning_refuses_what_it_cannot_tune(model):
    fast = called(model, ["cpu"])
    with pytest.raises(PlanError, match=r"torch\.no_grad"):
        fast.tune(torch.randn(16, 64))
    with torch.no_grad(), pytest.raises(PlanError, match="plan= says"):
        called(model, ["cpu"], plan=fast.plan).tune(torch.randn(16, 64))


def test_a_tuning_says_which_round_stays():
    found = Tuned((_Round(("a",), 1.0, 4.0), _Round(("b",), 2.0, 3.0)), 1, "ended")
    lines = str(found).splitlines()
    assert (
        "-25 %" in lines[3].replace("−", "-") and lines[3].rstrip().endswith("stays") and lines[-1] == "ended"
    )
    assert (found.before, found.after) == (4.0, 3.0)
