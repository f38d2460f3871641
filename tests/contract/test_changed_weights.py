"""After each way in which weights change, every call answers by the new weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from machines import placed
from models import assert_same
from torch import nn
from torch.nn.utils import parametrize

import autopar


class _Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def _in_place(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.mul_(1.5)


def _by_an_optimizer(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


def _loaded(model: nn.Sequential) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def _assigned(model: nn.Sequential) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()}, assign=True)


def _through_data(model: nn.Sequential) -> None:
    model[2].weight.data = model[2].weight.data + 0.25


def _another_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.full_like(model[0].weight, 0.1))


def _another_layer(model: nn.Sequential) -> None:
    torch.manual_seed(5)
    model[2] = nn.Linear(6, 6).to(model[0].weight.dtype)


def _parametrized(model: nn.Sequential) -> None:
    parametrize.register_parametrization(model[0], "weight", _Doubled())


WAYS: list[Callable[[nn.Sequential], None]] = [
    _in_place, _by_an_optimizer, _loaded, _assigned, _through_data, _another_parameter, _another_layer,
    _parametrized,
]  # fmt: skip


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


@pytest.mark.slow
@pytest.mark.parametrize("change", WAYS, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("where", ["cpu", "devices"])
def test_calls_answer_by_the_new_weights(change: Callable[[nn.Sequential], None], where: str) -> None:
    model, x = _model().double(), torch.randn(3, 6, dtype=torch.float64)
    fast = autopar.compile(model, **placed(where, model))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                assert_same(fast(x), model(x))
    change(model)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                assert_same(fast(x), model(x))
    weights = [*model.parameters()]
    ours, eager = (torch.autograd.grad(call(x).square().sum(), weights) for call in (fast, model))
    assert_same(ours, eager)


@pytest.mark.slow
def test_kernels_answer_by_the_new_weights() -> None:
    pytest.importorskip("onnxruntime")
    plain, x = _model(), torch.randn(3, 6)
    model = copy.deepcopy(plain)
    fast = autopar.compile(model, ["cpu"], kernels="onnxruntime")
    with torch.no_grad():
        fast(x)
        for change in WAYS[:-1]:  # a parametrization stays, and changes what the next ways can do
            for net in (plain, model):
                change(net)
            for _ in range(4):
                torch.testing.assert_close(fast(x), plain(x))
