"""Training with layers cut along features: weights, gradients and the optimizer's state in parts on the devices."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from machines import away, capped
from models import eager_step
from tensor_models import Attention
from torch import Tensor, nn

import autopar
from autopar.errors import MemoryCapError
from autopar.ir.device import Device, Link
from autopar.ir.graph import PART
from autopar.ir.machine import Machine
from autopar.transform.feature_split import LABEL

pytestmark = pytest.mark.slow

STEPS = 6


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.003),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), 0.003, fused=True),
}


def eager(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, clip: float | None
) -> Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


def apart(one: nn.Module, other: nn.Module) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("kind", "clip"),
    [
        ("momentum", None),
        ("adamw", 0.01),
        *(pytest.param(kind, None, marks=pytest.mark.release) for kind in OPTIMIZERS if kind != "momentum"),
    ],
)
def test_steps_in_parts_are_the_optimizers(kind: str, clip: float | None) -> None:
    model = pair()
    plain = copy.deepcopy(model)
    optimizer, own = OPTIMIZERS[kind](model), OPTIMIZERS[kind](plain)
    options = {"split": "features", "policy": away, "measure": False, "clip_norm": clip}
    step = autopar.train_step(model, nn.MSELoss(), optimizer, capped(None), **options)
    for _ in range(STEPS):
        x, y = torch.randn(4, 32), torch.randn(4, 32)
        torch.testing.assert_close(step(x, y), eager(plain, own, x, y, clip))
        assert apart(model, plain) < 1e-5
    graph = step.plan.costed.graph
    updated = {task.part for task in graph.tasks if task.origin == "update 0.weight"}
    assert len(updated) == 2 and not graph.readers["0.weight"]
    # A checkpoint is loaded as ever, into weights and the optimizer's state.
    state = copy.deepcopy(plain.state_dict()), copy.deepcopy(own.state_dict())
    for _ in range(2):
        step(x, y)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    torch.testing.assert_close(step(x, y), eager(plain, own, x, y, clip))
    assert apart(model, plain) < 1e-5


def test_a_model_too_large_for_one_device_trains_on_two() -> None:
    model = pair()
    plain = copy.deepcopy(model)
    optimizer, own = OPTIMIZERS["adamw"](model), OPTIMIZERS["adamw"](plain)
    # Weights, gradients and both of Adam's moments, and the new ones: some 7 times the weights, half of it on each.
    cap = 5 * sum(parameter.nbytes for parameter in model.parameters())
    x, y = torch.randn(2, 32), torch.randn(2, 32)
    eager(model, optimizer, x, y, None)
    eager(plain, own, x, y, None)
    optimizer.zero_grad()
    options = {"policy": away, "measure": False}
    ahead = {"example_inputs": (x, y), "criterion": nn.MSELoss(), "optimizer": optimizer}
    with pytest.raises(MemoryCapError):
        autopar.plan(model, capped(cap), split=None, **ahead, **options)
    found = autopar.plan(model, capped(cap), measure=False, **ahead)
    assert any(candidate.split.startswith(LABEL) for candidate in found.candidates)
    step = autopar.train_step(model, nn.MSELoss(), optimizer, capped(cap), **options, split="features")
    for _ in range(3):
        torch.testing.assert_close(step(x, y), eager(plain, own, x, y, None))
        assert apart(model, plain) < 1e-5
    held = {name: peak for name, peak in step.plan.peaks.items() if name != "cpu"}
    assert len(held) == 2 and all(0 < peak <= cap for peak in held.values())
    assert any(task.phase == "update" for task in step.plan.costed.graph.tasks)


@pytest.mark.parametrize("make", [pair, lambda: Attention(32, 4, True)], ids=["pair", "attention"])
def test_the_users_own_loop_gets_whole_gradients(make: Callable[[], nn.Module]) -> None:
    model = make()
    plain = copy.deepcopy(model)
    fast = autopar.compile(model, capped(None), measure=False, split="features", policy=away)
    optimizer, own = OPTIMIZERS["sgd"](model), OPTIMIZERS["sgd"](plain)
    for _ in range(STEPS):
        x, y = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
        loss = nn.functional.mse_loss(fast(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.testing.assert_close(loss, eager(plain, own, x, y, None).requires_grad_(), check_stride=False)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
        optimizer.step()
        assert apart(model, plain) < 1e-5
    assert any(value.slice for value in fast.plan.costed.graph.values)


def test_parts_of_small_weights_that_lie_in_one_buffer() -> None:
    """Copies of a bucket's parameters are views of one flat tensor from the second step on; so are parts of them."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())))
    other = copy.deepcopy(model)
    devices = (
        Device("cpu", "cpu", flops=(("float32", 1e9),), bytes_per_s=1e10),
        Device(
            "emulated:0", "emulated", memory_bytes=2_500_000, flops=(("float32", 1e13),), bytes_per_s=1e12
        ),
    )
    ways = ("cpu", "emulated:0", "in"), ("emulated:0", "cpu", "out")
    machine = Machine(devices, tuple(Link(a, b, 1e-5, 2.5e10, wire) for a, b, wire in ways))
    optimizer, rival = (torch.optim.SGD(each.parameters(), 0.01, momentum=0.9) for each in (model, other))
    step = autopar.train_step(model, nn.functional.mse_loss, optimizer, machine, measure=False)
    for _ in range(4):
        x, y = torch.randn(64, 256), torch.randn(64, 256)
        expected = eager_step(other, nn.functional.mse_loss, rival, x, y)
        torch.testing.assert_close(step(x, y), expected.detach(), rtol=1e-5, atol=1e-6)
    graph = step.plan.costed.graph
    assert any(task.target == PART and task.inputs[0].endswith(".bias") for task in graph.tasks)
    step.close()
