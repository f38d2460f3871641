"""Changes of an optimizer between placed steps act as in the plain loop, with the update in the program if possible."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from plain_loop import Pair, batches, mlp
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import autopar

pytestmark = pytest.mark.slow

IN_PROGRAM = "updates: part of the program"


def tensor_rate(parameters: Any) -> Optimizer:
    return Adam(parameters, lr=torch.tensor(0.05))


@pytest.mark.parametrize(
    ("optimizer", "clip_norm"),
    [
        (partial(AdamW, fused=True), None),
        # These two are among the updates in place.
        pytest.param(
            partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True), 0.05, marks=pytest.mark.release
        ),
        pytest.param(partial(Adam, amsgrad=True, weight_decay=0.1), 0.1, marks=pytest.mark.release),
        (partial(SGD, lr=0.1, momentum=0.5, dampening=0.3, weight_decay=0.1, maximize=True), 1.0),
        (tensor_rate, None),
    ],
)
def test_every_form_of_a_formula(optimizer, clip_norm):
    pair = Pair(mlp, optimizer, clip_norm=clip_norm)
    pair.same(batches(5), clip_norm=clip_norm)
    assert IN_PROGRAM in pair.step.explain()


Between = Callable[[nn.Module, Optimizer], Any]


def weights_written(model: nn.Module, optimizer: Optimizer) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.5)
        optimizer.state[model[2].weight]["exp_avg"].zero_()


def stepped_by_hand(model: nn.Module, optimizer: Optimizer) -> None:
    model(batches(1)[0][0]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def loaded(model: nn.Module, optimizer: Optimizer) -> None:
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    stepped_by_hand(model, optimizer)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])


@pytest.mark.parametrize(
    "between", [weights_written, stepped_by_hand, pytest.param(loaded, marks=pytest.mark.release)]
)
def test_a_step_reads_changes_made_between_steps(between: Between):
    pair = Pair(mlp, Adam)
    for _ in range(2):
        pair.same(batches(2))
        between(pair.model, pair.optimizer)
        between(pair.plain, pair.theirs)
    pair.same(batches(2))
    assert IN_PROGRAM in pair.step.explain()


def test_a_hook_of_the_optimizer_is_called_while_it_is_there():
    pair = Pair(mlp, AdamW)
    pair.same(batches(3))
    calls: list[Any] = []
    handle = pair.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    pair.same(batches(2))
    assert len(calls) == 2 and IN_PROGRAM not in pair.step.explain()
    handle.remove()
    pair.same(batches(3))
    assert len(calls) == 2 and IN_PROGRAM in pair.step.explain()


def test_parameters_of_no_optimizer_are_told_unless_they_are_frozen(caplog):
    for freeze in (True, False):
        model = mlp()
        model[2].requires_grad_(not freeze)
        autopar.train_step(model, nn.CrossEntropyLoss(), SGD(model[0].parameters(), lr=0.1), ["cpu"])
        assert ("no gradient of 2.weight" in caplog.text) != freeze


def test_a_group_added_in_mid_run():
    pair = Pair(mlp, lambda parameters: SGD(parameters[:2], lr=0.1, momentum=0.9))
    # The plain loop leaves the gradients of what its optimizer does not hold.
    for parameter in pair.plain[2].parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    pair.same(batches(3))
    pair.theirs.add_param_group({"params": [pair.plain[2].bias], "lr": 0.3})
    pair.optimizer.add_param_group({"params": [pair.model[2].bias], "lr": 0.3})
    pair.plain[2].bias._post_accumulate_grad_hooks.clear()
    pair.same(batches(3))


class Multiplying(torch.optim.Optimizer):
    """Steps by a product of matrices, in the dtype that `@` gives at the time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            flat = parameter.grad.reshape(1, -1)
            self.state[parameter]["dtype"] = (flat @ flat.T).dtype
            parameter.sub_(parameter.grad, alpha=0.1)


def test_an_optimizer_that_steps_by_itself_steps_without_autocast():
    pair = Pair(mlp, Multiplying, dtype=torch.float32, autocast=torch.bfloat16, check="never")
    for x, y in batches(2, dtype=torch.float32):
        pair.step(x, y)
    assert {entries["dtype"] for entries in pair.optimizer.state.values()} == {torch.float32}
