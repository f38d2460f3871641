"""Weights that no accelerator has room for: streamed where that makes the plan shorter, and only there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.lowering.memory_bound import footprint
from autopar.planner import replan
from autopar.session.batch_split import WORTH

pytestmark = pytest.mark.slow


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


def blocks(width: int, count: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(count))).eval()


def size(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(share, marks=pytest.mark.release) for share in (0.15, 0.9))]
)
def test_a_model_too_large_for_its_accelerator_is_streamed_to_it(share: float) -> None:
    model, x = blocks(1024), torch.empty(512, 1024)
    cap = int(share * size(model))
    machine = autopar.Machine.declare("cpu-16", "h100-sxm", memory={"cuda:0": cap})
    plan = autopar.plan(model, machine, example_inputs=(x,))
    resident = autopar.plan(model, machine, example_inputs=(x,), home={"0.norm": "cpu"})
    assert plan.costed.graph.streamed and plan.lower_bound <= plan.makespan < resident.makespan
    assert dict(plan.peaks)["cuda:0"] <= cap
    least = (1 - WORTH) * plan.makespan
    assert all(least <= each.makespan for each in plan.candidates if each.makespan is not None)
    assert any("no weights streamed" in each.note for each in plan.candidates)
    assert "weights streamed" in plan.explain("candidates")


@pytest.mark.parametrize(
    ("chips", "width", "rows", "share", "training"),
    [
        (("cpu-16", "h100-sxm"), 512, 64, None, False),
        (("cpu-64", "t4"), 1024, 5, 0.5, False),
        (("cpu-16", "h100-sxm"), 256, 64, 1.0, True),
    ],
    ids=["all fits", "a slow link, few rows, which the CPU computes sooner", "weights that train"],
)
def test_nothing_is_streamed(chips, width: int, rows: int, share: float | None, training: bool) -> None:
    model, x = blocks(width), torch.empty(rows, width)
    memory = {"cuda:0": int(share * size(model))} if share else None
    machine = autopar.Machine.declare(*chips, memory=memory)
    with torch.set_grad_enabled(training):
        plan = autopar.plan(model.train(training), machine, example_inputs=(x,))
    assert not plan.costed.graph.streamed
    assert share or not any("streamed" in each.note for each in plan.candidates)


@pytest.mark.parametrize("loop", ["planned", pytest.param("step", marks=pytest.mark.slow), "own"])
def test_frozen_weights_of_a_training_step_are_streamed(loop: str) -> None:
    """The backward does not come to a backbone without gradients; what trains stays on its devices."""
    backbone = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())))
    model = nn.Sequential(backbone.requires_grad_(False), nn.Linear(128, 4))
    x, y = torch.randn(64, 128), torch.randint(0, 4, (64,))
    machine, criterion = fast_stand_in(size(model) // 2 + 100_000), nn.functional.cross_entropy
    twin = copy.deepcopy(model)
    trained, own = (torch.optim.SGD(each[1].parameters(), 0.1) for each in (model, twin))
    if loop == "planned":
        inputs = {"example_inputs": (x, y), "criterion": criterion, "optimizer": trained}
        plan = autopar.plan(model, machine, measure=False, **inputs)
    else:
        step = autopar.train_step(model, criterion, trained, machine, measure=False)
        fast = autopar.compile(model, machine, measure=False)
        for _ in range(3):
            loss = step(x, y) if loop == "step" else criterion(fast(x), y)
            wanted = criterion(twin(x), y)
            torch.testing.assert_close(loss, wanted)
            for optimizer, made in ((trained, loss), (own, wanted)):
                if made.requires_grad:
                    made.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        plan = step.plan if loop == "step" else fast.plan
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
        step.close()
        fast.close()
    value = plan.costed.graph.value
    streamed = {value[name].path for name in plan.costed.graph.streamed}
    assert streamed and all(path.startswith("0.") for path in streamed)
    assert dict(plan.peaks)["emulated:0"] <= machine.device["emulated:0"].memory_bytes


@torch.no_grad()
def test_streamed_weights_that_change_are_seen() -> None:
    model, x = blocks(64, 3), torch.randn(512, 64)
    fast = autopar.compile(
        model, ["cpu", "emulated:0"], memory={"emulated:0": size(model) // 2}, policy="auto"
    )
    for turn in range(3):
        model[turn].layers[0].weight.mul_(1.5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()


def fast_stand_in(cap: int) -> Machine:
    """A slow CPU, and a stand-in said to be ten thousand times as fast."""
    devices = (
        Device("cpu", "cpu", flops=(("float32", 1e9),), bytes_per_s=1e10),
        Device("emulated:0", "emulated", memory_bytes=cap, flops=(("float32", 1e13),), bytes_per_s=1e12),
    )
    ways = ("cpu", "emulated:0", "in"), ("emulated:0", "cpu", "out")
    return Machine(devices, tuple(Link(a, b, 1e-5, 2.5e10, wire) for a, b, wire in ways))


@torch.no_grad()
def test_other_sizes_and_given_plans_stream_too() -> None:
    model = blocks(64, 3)
    machine = fast_stand_in(size(model) + 1_000_000)
    fast = autopar.compile(model, machine, measure=False)
    for rows in (64, 512):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    first = autopar.plan(model, machine, example_inputs=(torch.empty(512, 64),), measure=False)
    twin = autopar.compile(model, machine, plan=first, measure=False)
    x = torch.randn(512, 64)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-5, atol=1e-5)
    assert twin.plan.costed.graph.streamed == first.costed.graph.streamed != ()
    fast.close()
    twin.close()


@torch.no_grad()
@pytest.mark.parametrize("weights", [2, pytest.param(4, marks=pytest.mark.release)])
def test_copies_are_held_back_where_computing_takes_longer_than_they_do(weights: int) -> None:
    """Else all weights would arrive long before they are read, and no plan would keep the cap."""
    with torch.device("meta"):
        layers = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096, bias=False), nn.ReLU())]
        model, x = nn.Sequential(*layers).eval(), torch.empty(8192, 4096)
    one = model[0].weight.nbytes
    roomy, tight = (
        autopar.Machine.declare("cpu-16", "t4", memory={"cuda:0": cap})
        for cap in (10**11, weights * one + 3 * x.nbytes)
    )
    given = {"example_inputs": (x,), "measure": False, "pins": {"": "cuda:0"}}
    plan = autopar.plan(model, tight, home="cpu", **given)
    assert dict(plan.peaks)["cuda:0"] <= tight.device["cuda:0"].memory_bytes < 8 * one + 3 * x.nbytes
    # But for the first weight, copies are behind the clusters before.
    assert plan.makespan <= 1.1 * autopar.plan(model, roomy, home="cpu", **given).makespan
    again = replan(plan.costed, plan)
    assert again.makespan == pytest.approx(plan.makespan) and again.peaks == plan.peaks


@torch.no_grad()
def test_copies_held_back_are_run_so() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).eval()
    x = torch.randn(2048, 256)
    cap = 3 * model[0].weight.nbytes + 3 * x.nbytes
    machine = fast_stand_in(cap)
    fast = autopar.compile(model, machine, home="cpu", pins={"": "emulated:0"}, measure=False)
    for rows in (2048, 2048, 100):
        torch.testing.assert_close(fast(x[:rows]), model(x[:rows]), rtol=1e-5, atol=1e-5)
        peaks = {peak.device: peak.bytes for peak in footprint(fast.program)}
        assert peaks["emulated:0"] <= cap < size(model) + 3 * x.nbytes
    fast.close()
