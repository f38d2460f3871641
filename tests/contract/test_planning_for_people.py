"""A CPU of several lanes competes with one lane of all its threads; gradient checkpointing in a placed model warns."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autopar
from autopar import Machine

pytestmark = pytest.mark.slow


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Towers(nn.Module):
    """Two towers of equal length, which two lanes share evenly; or one, which one lane computes alone."""

    def __init__(self, towers: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))) for _ in range(towers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


def lanes(plan: autopar.Plan) -> int:
    return plan.costed.machine.device["cpu"].lanes


@pytest.mark.parametrize("towers", [1, 2])
def test_two_lanes_compete_with_one_lane_of_all_threads(two_threads, towers):
    model, x = Towers(towers), torch.randn(64, 512)
    options = {"example_inputs": (x,), "measure": False}
    with torch.no_grad():
        plan, one = (autopar.plan(model, devices, **options) for devices in ("cpu*2", "cpu"))
        # Whoever asks for a policy or a split of the batch gets the lanes as they are.
        asked = autopar.plan(model, "cpu*2", split=None, **options)
        halves = autopar.plan(model, "cpu*2", split=2, **options)
        assert (lanes(one), lanes(asked), lanes(halves)) == (1, 2, 2)
        assert plan.makespan <= min(one.makespan, asked.makespan) * (1 + 1e-9)
        assert lanes(plan) == 1 or plan.makespan <= one.makespan
        told = " ".join(plan.explain("all").split())
        assert "1 CPU lane of 2 threads" in told and "2 CPU lanes of 1 thread" in told
        fast = autopar.compile(model, "cpu*2", measure=False)
        assert torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5)
    fast(x).sum().backward()
    gradient, model.towers[0][0].weight.grad = model.towers[0][0].weight.grad, None
    model(x).sum().backward()
    assert torch.allclose(gradient, model.towers[0][0].weight.grad, rtol=1e-4, atol=1e-5)


def test_a_declared_machine_keeps_its_lanes():
    plan = autopar.plan(Towers(1), Machine.declare("cpu"), example_inputs=(torch.ones(1, 512),))
    assert "CPU lane" not in plan.explain()


def checkpointed(kind: str) -> nn.Module:
    """A model with a region under `torch.utils.checkpoint`; its class has a name of its own, for which it warns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False).sum()

    net = type(f"Checkpointed{kind}", (nn.Module,), {"forward": forward})()
    net.block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    return net


@pytest.mark.parametrize("way", ["loop", "step"])
def test_gradient_checkpointing_in_a_placed_model_warns_once(caplog, way):
    model, x = checkpointed(way), torch.randn(4, 8)
    if way == "loop":
        fast = autopar.compile(model, "cpu*2")
        for rows in (4, 4, 2):
            fast(x[:rows]).backward()
    else:
        step = autopar.train_step(
            model, None, torch.optim.SGD(model.parameters(), lr=0.1), "cpu", step_fn=lambda net, x: net(x)
        )
        for rows in (4, 4, 2):
            step(x[:rows])
    (line,) = [text for text in caplog.messages if "checkpoint" in text]
    assert "saves no memory" in line and "recompute=" in line and type(model).__name__ in line


def test_no_warning_without_a_backward_or_with_recompute(caplog):
    with torch.no_grad():
        autopar.compile(checkpointed("Inference"), "cpu")(torch.randn(4, 8))
    autopar.compile(checkpointed("Recomputed"), "cpu", recompute=0.5)(torch.randn(4, 8)).backward()
    assert not [text for text in caplog.messages if "checkpoint" in text]
