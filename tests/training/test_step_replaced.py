"""Steps of a model whose parameters were replaced, exchanged or switched since the last step: each parameter is updated
with its own optimizer state, or the step is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_loop import FORCED, THREE, Pair, batches
from torch import nn
from torch.optim import SGD, AdamW

import autopar
from autopar.errors import CaptureError

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "AdamW": lambda parameters: AdamW(parameters, lr=0.05),
    "SGD": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
}


class Branches(nn.Module):
    """Equal layers, of which an attribute selects one: Dynamo has one graph for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 5)
        self.used = [self.left]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.used[0](x)))


def square() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 5))


def replace_head(model: Any) -> None:
    torch.manual_seed(1)
    model[4] = nn.Linear(12, 5).double()


def assign(model: nn.Module) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


@pytest.mark.parametrize("name", ["AdamW", pytest.param("SGD", marks=pytest.mark.release)])
def test_equal_layers_take_turns(name: str) -> None:
    pair = Pair(Branches, OPTIMIZERS[name])
    for _ in range(2):
        for branch in ("left", "right"):
            for model in (pair.plain, pair.model):
                model.used = [getattr(model, branch)]
            pair.same(batches(3))
            assert pair.model.left.weight is not pair.model.right.weight
        assert len(pair.step._session.graphs) == 2, "no turn is planned again"
    pair.step.close()


@pytest.mark.parametrize("name", ["AdamW", pytest.param("SGD", marks=pytest.mark.release)])
def test_layers_change_places(name: str) -> None:
    pair = Pair(square, OPTIMIZERS[name])
    for _ in range(3):
        pair.same(batches(3))
        for model in (pair.plain, pair.model):
            model[0], model[2] = model[2], model[0]
    assert len(pair.step._session.graphs) == 2
    pair.step.close()


@pytest.mark.parametrize(
    ("replace", "name"),
    [
        (replace_head, "AdamW"),
        (assign, "SGD"),
        pytest.param(replace_head, "SGD", marks=pytest.mark.release),
        pytest.param(assign, "AdamW", marks=pytest.mark.release),
    ],
)
def test_a_parameter_that_only_the_optimizer_has_left_is_refused(
    name: str, replace: Callable[[Any], None]
) -> None:
    torch.manual_seed(0)
    model = square().double()
    optimizer = OPTIMIZERS[name](model.parameters())
    step = autopar.train_step(model, nn.CrossEntropyLoss(), optimizer, THREE, **FORCED)
    for batch in batches(3):
        step(*batch)
    replace(model)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    for batch in batches(2):
        with pytest.raises(CaptureError, match=r"build the optimizer from model\.parameters.*and the step"):
            step(*batch)
    step.close()
    now = model.state_dict(), optimizer.state_dict()["state"]
    torch.testing.assert_close(now, before, rtol=0, atol=0)


def test_a_frozen_layer_may_be_replaced() -> None:
    def frozen() -> nn.Module:
        model = square()
        model[0].requires_grad_(False)
        return model

    pair = Pair(frozen, OPTIMIZERS["AdamW"])
    pair.same(batches(3))
    for model in (pair.plain, pair.model):
        torch.manual_seed(1)
        model[0] = nn.Linear(12, 12).double().requires_grad_(False)
    pair.same(batches(3))
    pair.step.close()


def test_programs_of_parameters_that_are_gone_are_dropped() -> None:
    pair = Pair(square, OPTIMIZERS["AdamW"])
    for _ in range(2):
        pair.same(batches(3))
        for model, optimizer in ((pair.plain, pair.theirs), (pair.model, pair.optimizer)):
            replace_head(model)
            optimizer.param_groups[0]["params"][-2:] = model[4].parameters()
            optimizer.state.clear()
    assert len(pair.step._session.graphs) == 1
    pair.step.close()
