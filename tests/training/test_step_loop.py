"""A loop of `autopar.train_step` gives the losses, weights, buffers and optimizer state of the plain loop."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from plain_loop import THREE, TWO_LANES, Normed, Pair, Tied, batches, far, mlp, plain, wide
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW
from turns import by_turns

import autopar

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "sgd": functools.partial(SGD, lr=0.2),
    "momentum": functools.partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(Adam, lr=0.01),
    "adamw": functools.partial(AdamW, lr=0.01, weight_decay=0.1),
    "adagrad": functools.partial(Adagrad, lr=0.05),
}
MOMENTUM, ADAM = OPTIMIZERS["momentum"], OPTIMIZERS["adam"]


@by_turns("name, devices", OPTIMIZERS, [THREE, TWO_LANES])
def test_losses_are_the_plain_loops(name, devices):
    pair = Pair(mlp, OPTIMIZERS[name], devices)
    pair.same(batches(20))
    assert pair.step.plan.costed.graph.split.startswith("2 parts")
    # Torch's own three are part of the program, all others step by themselves.
    updates = [task for task in pair.step.plan.costed.graph.tasks if task.phase == "update"]
    assert bool(updates) == (name != "adagrad")
    assert ("Adagrad.step()" in pair.step.explain()) == (name == "adagrad")


@by_turns("model, policy", [Normed, Tied, functools.partial(mlp, 0.4)], ["auto", "round_robin"])
def test_models_that_keep_or_draw_or_share(model, policy):
    pair = Pair(model, MOMENTUM, policy=policy)
    pair.same(batches(20), 1e-9)
    pair.step.close()


@pytest.mark.parametrize(
    "rows",
    [1, (5, 2)],
    ids=str,
)
def test_batches_of_any_size(rows):
    """Odd, smaller than the devices, the short last one of a loader."""
    Pair(mlp, ADAM).same(batches(12, rows))


def test_clipping_by_the_global_norm():
    pair = Pair(mlp, MOMENTUM, clip_norm=0.05)
    pair.same(batches(20), clip_norm=0.05)
    assert any(task.target == "autopar.clip" for task in pair.step.plan.costed.graph.tasks)
    assert "norm" in pair.step.explain()


@by_turns("by, clip_norm", ["argument", "no_sync"], [None, 0.1])
def test_accumulated_gradients(by, clip_norm):
    pair = Pair(mlp, ADAM, clip_norm=clip_norm)
    data = batches(12)
    expected = plain(pair.plain, pair.criterion, pair.theirs, data, each=3, clip_norm=clip_norm)
    found = []
    for index, (x, y) in enumerate(data, 1):
        if not index % 3:
            loss = pair.step(x, y)
        elif by == "argument":
            loss = pair.step(x, y, accumulate=True)
        else:
            with pair.step.no_sync():
                loss = pair.step(x, y)
        found.append(loss.item())
        waits = [parameter.grad is not None for parameter in pair.model.parameters()]
        assert all(waits) if index % 3 else not any(waits)
    assert far(found, expected) <= 1e-9
    pair.same_after()


def scaler(scale: float = 2.0**12) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)


def test_the_scaler_scales_and_grows():
    ours, theirs = scaler(), scaler()
    pair = Pair(mlp, ADAM, scaler=ours, clip_norm=0.1)
    pair.same(batches(12), scaler=theirs, clip_norm=0.1)
    assert ours.get_scale() == theirs.get_scale() > 2.0**12
    assert "scaler" in pair.step.explain()


def test_the_scaler_skips_a_step_with_infinities():
    ours, theirs = scaler(), scaler()
    pair = Pair(mlp, MOMENTUM, scaler=ours)
    data = batches(3)
    pair.same(data[:2], scaler=theirs)
    before = {name: tensor.clone() for name, tensor in pair.model.state_dict().items()}
    worse = [(torch.full_like(data[2][0], 1e308) * 100, data[2][1])]
    _ = pair.losses(worse, scaler=theirs)
    assert all(torch.equal(before[name], tensor) for name, tensor in pair.model.state_dict().items())
    assert ours.get_scale() == theirs.get_scale() < 2.0**12
    pair.same(data[2:], scaler=theirs)


def test_bfloat16_by_autocast():
    pair = Pair(Tied, MOMENTUM, dtype=torch.float32, autocast=torch.bfloat16)
    pair.same(batches(10, dtype=torch.float32), 2e-2, autocast=torch.bfloat16)
    assert any("bfloat16" in value.dtype for value in pair.step.plan.costed.graph.values)
    assert all(parameter.dtype == torch.float32 for parameter in pair.model.parameters())


def frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def test_frozen_parameters_stay():
    pair = Pair(frozen, MOMENTUM)
    before = pair.model[0].weight.clone()
    pair.same(batches(6))
    assert torch.equal(before, pair.model[0].weight) and pair.model[0].weight.grad is None
    read = {task.module for task in pair.step.plan.costed.graph.tasks if task.phase != "forward"}
    assert not any(module.startswith("0") for module in read)


def test_a_parameter_frozen_or_thawed_in_mid_run():
    pair = Pair(mlp, MOMENTUM)
    data = batches(12)
    pair.same(data[:4])
    for model in (pair.plain, pair.model):
        model[0].weight.requires_grad_(False)
    pair.same(data[4:8])
    for model in (pair.plain, pair.model):
        model[0].weight.requires_grad_(True)
    pair.same(data[8:])


def test_a_parameter_that_the_loss_does_not_reach():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(12, 5), nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    Pair(Spare, functools.partial(AdamW, lr=0.01, weight_decay=0.5)).same(batches(5))


def test_param_groups_and_their_changes():
    def grouped(parameters: Any) -> SGD:
        return SGD([{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:]}], lr=0.05, momentum=0.5)

    pair = Pair(mlp, grouped)
    data = batches(12)
    pair.same(data[:4])
    for optimizer in (pair.optimizer, pair.theirs):
        optimizer.param_groups[1].update(lr=0.2, weight_decay=0.1)
    pair.same(data[4:8])
    for optimizer in (pair.optimizer, pair.theirs):
        optimizer.param_groups[0]["momentum"] = 0
    pair.same(data[8:])


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": 0.0},
        {"measure": True},
        {"split": {"emulated:0": 0.25, "emulated:1": 0.75}, "policy": "auto"},
        {"pins": {"*.weight": "cpu", "*.bias": "emulated:1"}, "policy": "heft"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_planning(options):
    Pair(Normed, MOMENTUM, **options).same(batches(5))


def test_statistics_of_each_part():
    """As `nn.DataParallel` has them: each half of the batch is normed by itself."""

    class Halves(Normed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([super(Halves, self).forward(half) for half in x.chunk(2)])

    pair = Pair(Normed, MOMENTUM, batch_norm="per_part")
    whole = Pair(Normed, MOMENTUM)
    halves = Halves().double()
    halves.load_state_dict(pair.plain.state_dict())
    optimizer = MOMENTUM(halves.parameters())
    data = batches(5)
    expected = plain(halves, pair.criterion, optimizer, data)
    found = [pair.step(x, y).item() for x, y in data]
    assert far(found, expected) <= 1e-9
    assert far([whole.step(x, y).item() for x, y in data], expected) > 1e-6


def test_a_cap_without_room_for_second_buffers_lets_the_optimizer_step():
    roomy = Pair(wide, ADAM)
    roomy.same(batches(3))
    most = max(roomy.step.plan.peaks["cpu"], 1)
    least = roomy.step.ready().gradients.plan.peaks["cpu"]
    assert least < most
    pair = Pair(wide, ADAM, memory={"cpu": (least + most) // 2})
    pair.same(batches(5))
    report = pair.step.explain()
    assert "second buffers" in report and "Adam.step()" in report
    assert not any(task.phase == "update" for task in pair.step.plan.costed.graph.tasks)


class Twins(nn.Module):
    """Two parameters with one gradient between them, and one whose gradient is what the backward starts from."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5)
        self.one, self.other = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.ones(5))
        self.start = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (self.one + self.other)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("momentum", None),
        ("adagrad", 2),
    ],
)
def test_gradients_that_share_memory_are_clipped_and_added_once(name, split):
    pair = Pair(Twins, OPTIMIZERS[name], clip_norm=0.05, split=split)
    data = batches(9)
    expected = plain(pair.plain, pair.criterion, pair.theirs, data, each=3, clip_norm=0.05)
    found = [pair.step(x, y, accumulate=bool(i % 3)).item() for i, (x, y) in enumerate(data, 1)]
    assert far(found, expected) <= 1e-9
    pair.same_after()
    pair.same(data[:3], clip_norm=0.05)


@pytest.mark.parametrize("name", ["momentum", "adagrad"])
def test_the_loss_may_be_a_parameter_itself(name):
    def step_fn(model: Twins, x: torch.Tensor) -> torch.Tensor:
        return model.layer(x).square().mean() + model.start

    torch.manual_seed(0)
    model, twin = Twins().double(), Twins().double()
    twin.load_state_dict(model.state_dict())
    ours, theirs = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    step = autopar.train_step(model, None, ours, THREE, step_fn=step_fn, clip_norm=0.1)
    for x, _ in batches(5):
        step_fn(twin, x).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        theirs.step()
        theirs.zero_grad()
        step(x)
    assert far(model.start.detach(), twin.start.detach()) <= 1e-9
    assert far(model.layer.weight.detach(), twin.layer.weight.detach()) <= 1e-9
