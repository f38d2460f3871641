"""Large weights of one CPU lane are updated in place, as by the optimizer itself, and never in a failed step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from plain_loop import Pair, batches
from torch import nn
from torch.optim import SGD, Adam, AdamW

import autopar

ONE = {"devices": ["cpu"], "policy": "auto", "split": None}


def large() -> nn.Module:
    """A model of weights that no bucket holds, one of them laid out in another order."""
    made = nn.Sequential(
        nn.Linear(12, 400), nn.Tanh(), nn.Linear(400, 400), nn.Linear(400, 400), nn.Linear(400, 5)
    )
    made[3].weight = nn.Parameter(made[3].weight.detach().t())
    return made


def overwritten(step: Any) -> set[str]:
    """The state that the program of a step writes into its own memory."""
    program = step.program
    roots = {made: program.buffer[program.buffer[made].storage] for made, _ in program.updates}
    return {state for made, state in program.updates if roots[made].kind == "given"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "clip_norm"),
    [
        (partial(SGD, lr=0.1), None),
        (partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True, weight_decay=0.1), 0.05),
        (partial(Adam, amsgrad=True, weight_decay=0.1), 0.1),
        (partial(AdamW, fused=True), None),
    ],
)
def test_updates_in_place_equal_the_optimizers(optimizer, clip_norm):
    pair = Pair(large, optimizer, clip_norm=clip_norm, **ONE)
    weight = pair.model[2].weight
    pair.same(batches(2), clip_norm=clip_norm)
    place, version = weight.data_ptr(), weight._version
    pair.same(batches(2), limit=0.0 if clip_norm is None else 1e-9, clip_norm=clip_norm)
    state = len(next(iter(pair.optimizer.state.values()), {}).keys() - {"step"})
    assert sum(name.startswith("3.weight") for name in overwritten(pair.step)) == 1 + state
    assert weight.data_ptr() == place and weight._version > version


def test_no_second_buffers_are_counted():
    pair = Pair(large, partial(Adam, lr=0.1), **ONE)
    pair.same(batches(3))
    program = pair.step.program
    own = {b.name for b in program.buffers if b.storage == b.name and b.kind == "result"}
    assert overwritten(pair.step) and not any(
        made in own for made, state in program.updates if state in overwritten(pair.step)
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["cpu*2"], ["cpu", "emulated:0"]])
def test_other_machines_keep_second_buffers(devices):
    pair = Pair(large, partial(SGD, lr=0.1), devices=devices)
    pair.same(batches(3))
    assert not overwritten(pair.step)


def test_momentum_that_is_switched_between_steps():
    pair = Pair(large, partial(SGD, lr=0.1, momentum=0.9), **ONE)
    for momentum in (0.9, 0.0, 0.5):
        for optimizer in (pair.optimizer, pair.theirs):
            optimizer.param_groups[0]["momentum"] = momentum
        pair.same(batches(3))
    assert {"3.weight", "3.weight_momentum_buffer"} <= overwritten(pair.step)


def test_a_step_that_fails_before_its_updates_changes_nothing():
    model = large()
    failing = {"on": False}

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return fails(model(x)).square().mean()

    @torch.library.custom_op("autopar_tests::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        if failing["on"]:
            raise ValueError("told to")
        return x.clone()

    fails.register_fake(torch.empty_like)
    fails.register_autograd(lambda ctx, gradient: gradient)
    step = autopar.train_step(model, None, SGD(model.parameters(), 0.1), ["cpu"], step_fn=loss)
    x = torch.randn(8, 12)
    for _ in range(3):
        step(x)
    assert overwritten(step)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    failing["on"] = True
    with pytest.raises(autopar.RunError, match="told to"):
        step(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    failing["on"] = False
    step(x)
    assert not torch.equal(model[2].weight, before["2.weight"])
