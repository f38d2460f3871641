"""Where weights live: `home=` in plans and in what runs."""

import copy

import pytest
import torch
from models import eager_step
from torch import nn

import autopar
from autopar.costs.pins import lives
from autopar.errors import DeviceError, PlanError
from autopar.ir.machine import Machine
from autopar.lowering.check import check
from autopar.lowering.lower import lower

pytestmark = pytest.mark.slow

DECLARED = Machine.declare("cpu", "h100-sxm", "h100-sxm")


def layers(count: int = 6, width: int = 64) -> nn.Module:
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(width, width), nn.Tanh())))


def planned(model, x, devices=DECLARED, training=False, **options):
    with torch.set_grad_enabled(training):
        return autopar.plan(model, devices, example_inputs=(x,), **options)


def brought(plan) -> int:
    """Bytes of weights that a call moves."""
    return sum(transfer.bytes for transfer in plan.transfers if transfer.value in plan.costed.graph.state)


@pytest.mark.parametrize(
    ("split", "training"),
    [
        pytest.param(2, False, id="2-inference"),
        pytest.param(None, True, id="None-training"),
    ],
)
def test_weights_that_live_on_the_host_are_brought_in_each_call(training: bool, split: int | None) -> None:
    model, x = layers(4, 1024), torch.randn(2048, 1024)
    policy = "auto" if split else "single cuda:0"
    at_home = planned(model, x, training=training, home="cpu", policy=policy, split=split)
    as_usual = planned(model, x, training=training, policy=policy, split=split)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert brought(at_home) >= size and not at_home.resident
    assert at_home.makespan >= as_usual.makespan * (1 - 1e-9)
    if not training:
        assert not brought(as_usual) and as_usual.makespan < at_home.makespan
    program = lower(at_home)
    check(program, at_home.costed.graph)
    assert not program.keeps


def test_weights_on_the_device_that_computes_need_no_transfers() -> None:
    model, x = layers(4, 1024), torch.randn(2048, 1024)
    plan = planned(model, x, home="cuda:1", policy="single cuda:1", split=None)
    assert not brought(plan)
    moved = planned(model, x, home="cuda:1", policy="single cuda:0", split=None)
    assert brought(moved)


def test_a_model_larger_than_the_device_runs_where_its_weights_come_and_go() -> None:
    """With a cap below all weights together: resident they do not fit, brought one after the other they do."""
    model, x = layers(8, 1024), torch.randn(64, 1024)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    memory, options = {"cuda:0": weights // 2}, {"policy": "single cuda:0", "split": None}
    machine = Machine.declare("cpu", "h100-sxm")
    with pytest.raises(autopar.MemoryCapError):
        planned(model, x, machine, memory=memory, **options)
    plan = planned(model, x, machine, memory=memory, home="cpu", **options)
    assert brought(plan) >= weights
    peaks = {peak.device: peak.bytes for peak in check(lower(plan), plan.costed.graph)}
    assert peaks["cuda:0"] <= weights // 2 and plan.peaks["cuda:0"] <= weights // 2


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("home", "devices"),
    [
        ("emulated:0", ["cpu", "emulated:0", "emulated:1"]),
        ({"0": "emulated:0", "*": "cpu"}, ["cpu", "emulated:0"]),
    ],
)
def test_runs_give_what_eager_gives(devices, training, home) -> None:
    model, x = layers(3), torch.randn(8, 64)
    plain = copy.deepcopy(model)
    fast = autopar.compile(model, devices, home=home, policy="round_robin", split=None)
    for _ in range(3):
        with torch.set_grad_enabled(training):
            found, wanted = fast(x), plain(x)
        assert torch.allclose(found, wanted, atol=1e-6)
        if training:
            found.sum().backward()
            wanted.sum().backward()
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)
        # There are no copies that could be out of date.
        with torch.no_grad():
            for one in (model, plain):
                for parameter in one.parameters():
                    parameter.mul_(0.9)
                    parameter.grad = None
    assert not fast.program.keeps and not fast.plan.resident
    fast.close()


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p)]
)
def test_training_steps_update_weights_at_home(make) -> None:
    losses = []
    for home in (None, "cpu", "emulated:0"):
        torch.manual_seed(0)
        model, x, y = layers(3), torch.randn(16, 64), torch.randn(16, 64)
        optimizer = make(model.parameters())
        if home is None:
            for _ in range(5):
                loss = eager_step(model, nn.functional.mse_loss, optimizer, x, y)
                losses.append(float(loss))
            continue
        step = autopar.train_step(
            model, nn.MSELoss(), optimizer, ["cpu", "emulated:0"], home=home, policy="round_robin", split=None
        )
        found = [float(step(x, y)) for _ in range(5)]
        assert found == pytest.approx(losses, rel=1e-5)
        assert step.program.updates and not step.program.keeps
        step.close()


def test_the_longest_path_says_where_a_weight_lives() -> None:
    home = {"encoder": "cuda:0", "encoder.0": "cpu", "*.bias": "cuda:1"}
    assert lives("encoder.1.weight", home) == "cuda:0"
    assert lives("encoder.0.weight", home) == "cpu"
    assert lives("encoder.1.bias", home) == "cuda:1"
    assert lives("decoder.weight", home) == ""
    assert lives("optimizer.state.encoder.0.weight.exp_avg", home) == "cpu"


@pytest.mark.parametrize(
    ("home", "error", "text"),
    [
        ("gpu", DeviceError, "no device 'gpu'"),
        ({"0": "gpu"}, DeviceError, "no device 'gpu'"),
        ({"9": "cpu"}, PlanError, "names no module"),
        (3, PlanError, "home=3 is not known"),
    ],
)
def test_unknown_homes_are_refused(home, error, text) -> None:
    with pytest.raises(error, match=text):
        planned(layers(1), torch.randn(2, 64), home=home)


def test_weights_may_come_from_meta_to_where_they_are_said_to_live() -> None:
    model = layers(1).to("meta")
    fast, x = autopar.compile(model, ["cpu"], home="cpu"), torch.randn(2, 64)
    with pytest.raises(RuntimeError, match="meta is not on the expected device"):
        fast(x)
    model.load_state_dict(layers(1).state_dict(), assign=True)
    torch.testing.assert_close(fast(x), model(x))
