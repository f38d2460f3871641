"""The face: what a newcomer types, and what comes back when it is wrong."""

import copy
import logging
import pickle

import pytest
import torch
from torch import nn

import autopar

THREE = ["cpu", "emulated:0", "emulated:1"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower_a = nn.Linear(16, 32)
        self.tower_b = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(64, 4)

    def forward(self, x, scale=1.0):
        return self.head(self.drop(self.norm(torch.cat([self.tower_a(x), self.tower_b(x)], 1)))) * scale


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(12, 16)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_functions_of_tensors_work_and_so_do_their_modules(model, x):
    def double(x):
        return {"y": model(x) * 2, "n": 3}

    fast = autopar.compile(double, THREE)
    found = fast(x)
    assert found["n"] == 3
    torch.testing.assert_close(found["y"], model(x) * 2)


def test_what_eager_returns_itself_is_returned_itself(model, x):
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, x):
            return x, self.scale, x * self.scale

    echo = Echo()
    y, scale, z = autopar.compile(echo, THREE, policy="round_robin")(x)
    assert y is x and scale is echo.scale and z is not x


@pytest.mark.slow
def test_training_mode_recaptures_and_updates_the_users_buffers(model, x):
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, THREE, policy="round_robin")
    fast(x)
    fast.train()
    twin.train()
    assert model.training
    for _ in range(2):
        torch.manual_seed(1)
        found = fast(x)
        torch.manual_seed(1)
        torch.testing.assert_close(found, twin(x))
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)
    assert model.norm.num_batches_tracked == twin.norm.num_batches_tracked


def test_state_is_the_users_own(model, x):
    fast = autopar.compile(model, THREE, policy="round_robin")
    assert list(fast.state_dict()) == list(model.state_dict())
    assert [id(p) for p in fast.parameters()] == [id(p) for p in model.parameters()]
    assert fast.module is model
    fast(x)
    other = Net().eval()
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(x), other(x))
    model.head.weight.mul_(2.0)
    torch.testing.assert_close(fast(x), model(x))
    model.head = nn.Linear(64, 4)
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.slow
def test_an_edited_plan_is_compiled_back(model, x, tmp_path):
    fast = autopar.compile(model, THREE, split=2, example_inputs=(x,))
    fast.plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert autopar.Plan.load(tmp_path / "plan.json") == fast.plan
    again = autopar.compile(model, THREE, plan=tmp_path / "plan.json")
    torch.testing.assert_close(again(x), model(x))
    assert {p.cluster: p.lane for p in again.plan.placed} == {p.cluster: p.lane for p in fast.plan.placed}
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(autopar.PlanError, match="never a pickle"):
        autopar.compile(model, THREE, plan=tmp_path / "pickle")
    with pytest.raises(autopar.PlanError, match="another graph"):
        autopar.compile(nn.Linear(16, 2), THREE, plan=fast.plan, example_inputs=(x,))
    (tmp_path / "plan.json").write_text(text.replace('"device": "', '"device": "x', 1))
    with pytest.raises(autopar.AutoparError):
        autopar.compile(model, THREE, plan=tmp_path / "plan.json", example_inputs=(x,))


@pytest.mark.slow
def test_sizes_are_kept_and_dropped_with_one_warning(model, caplog, monkeypatch):
    monkeypatch.setattr("autopar.session.program_cache.SIZES", 4)
    # Each number of rows is cut in its own way.
    fast = autopar.compile(model, ["cpu*2"], split=2, check="never")
    with caplog.at_level(logging.WARNING, "autopar"):
        for rows in (*range(2, 13), *range(2, 6)):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(fast(x), model(x))
    assert sum("more than 4 sets of sizes" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_moving_pickling_and_copying(model, x):
    fast = autopar.compile(model, THREE)
    with pytest.raises(autopar.DeviceError, match="its plan decides where tensors are"):
        fast.to("meta")
    with pytest.raises(TypeError, match=r"fast\.plan\.save"):
        pickle.dumps(fast)
    twin = copy.deepcopy(fast)
    assert twin.module is not model
    torch.testing.assert_close(twin(x), model(x))
    shallow = copy.copy(fast)
    torch.testing.assert_close(shallow(x), model(x))
    pairs = zip(shallow.parameters(), model.parameters(), strict=True)
    assert shallow.module is not model and all(one is other for one, other in pairs)
    fast.to(torch.float64)
    assert fast(x.double()).dtype == torch.float64


def test_nothing_is_planned_before_the_first_call(model):
    with pytest.raises(autopar.AutoparError, match="call the compiled model once"):
        _ = autopar.compile(model, ["cpu"]).plan


@pytest.mark.slow
def test_measuring_races_the_plan_against_one_device_for_real(model, x, caplog):
    from autopar.session import stages

    x = torch.randn(4096, 16)
    with caplog.at_level(logging.INFO, "autopar"):
        fast = autopar.compile(model, THREE, policy="round_robin", split=None, measure=True)
        torch.testing.assert_close(fast(x), model(x))
    _, prepared = fast._placement.session.ready()
    assert prepared.single_s is not None
    lost = [c for c in fast.plan.candidates if "measured" in c.note]
    assert bool(lost) == (len({p.device for p in fast.plan.placed}) == 1)
    assert {cost.how for cost in fast.plan.costed.costs} <= {"measured", "roofline"}
    assert any(cost.how == "measured" for cost in fast.plan.costed.costs)
    assert not stages.repeatable(prepared.captured, autopar.compile(model, ["cpu"], example_inputs=(x,)).plan)


def test_recording(model, x, tmp_path):
    fast = autopar.compile(model, THREE, policy="round_robin")
    fast(x)
    with fast.record() as timeline:
        fast(x)
        fast(x)
    assert len(timeline.calls) == 2
    assert timeline.last.predicted is not None
    timeline.save(tmp_path / "run.json.gz")
    fast.draw(tmp_path / "placed.html")
    assert "measured" in fast.explain()
    with fast.record() as empty:
        pass
    with pytest.raises(autopar.AutoparError, match="nothing was recorded"):
        empty.save(tmp_path / "none.json")
