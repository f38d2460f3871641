"""Weights put elsewhere between a forward and its backward: gradients are eager's, or the backward is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autopar

WAYS: dict[str, dict[str, Any]] = {
    "one device": {"devices": ["cpu"]},
    "three devices": {"devices": ["cpu", "emulated:0", "emulated:1"], "policy": "round_robin", "split": None},
    "split batch": {"devices": ["cpu", "emulated:0"], "policy": "round_robin", "split": 2},
}


class Product(nn.Module):
    """`torch.matmul` keeps the weight itself for its backward, `nn.Linear` a transposed view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) @ self.weight


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)).eval()


def other_values(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data * 3


def other_strides(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.data = weight.data.T if weight.dim() == 2 else weight.data


def no_memory(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.data = torch.empty(0)


def set_elsewhere(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.set_(weight.detach() * 3)


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)


def loaded(model: nn.Module, assign: bool = True) -> None:
    model.load_state_dict({name: value * 3 for name, value in model.state_dict().items()}, assign=assign)


def loaded_in_place(model: nn.Module) -> None:
    loaded(model, assign=False)


def gradients(call: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, change: Any) -> Any:
    """The gradients of a call after whose forward the weights change, or the text of eager's error."""
    torch.manual_seed(1)
    weights, x = [*model.parameters()], torch.randn(4, 6, requires_grad=True)
    output = call(x)
    change(model)
    try:
        return torch.autograd.grad(output.square().sum(), [x, *weights])
    except RuntimeError as error:
        if isinstance(error, autopar.AutoparError):
            raise
        return "modified by an inplace operation" in str(error)


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "change", [other_values, other_strides, no_memory, set_elsewhere, in_place, loaded, loaded_in_place]
)
def test_gradients_of_linear_layers_are_eagers(change: Callable[[nn.Module], None], way: str):
    plain, model = pair(layers)
    source = copy.deepcopy(model.state_dict())
    fast = autopar.compile(model, **WAYS[way])
    for _ in range(2):
        wanted, found = gradients(plain, plain, change), gradients(fast, model, change)
        assert type(found) is type(wanted)
        if isinstance(wanted, bool):
            assert wanted and found
        else:
            torch.testing.assert_close(found, wanted)
        for target in (plain, model):
            for name, weight in target.named_parameters():
                weight.data = source[name].clone()
    fast.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Product, normed])
def test_a_backward_that_eager_takes_with_new_weights_is_refused(make: Callable[[], nn.Module], way: str):
    model = make()
    fast = autopar.compile(model, **WAYS[way])
    with pytest.raises(autopar.RunError, match=r"(weight|running_mean) was replaced between a forward and"):
        gradients(fast, model, other_values)
    # The next call reads the new weights.
    torch.testing.assert_close(fast(torch.ones(4, 6)), model(torch.ones(4, 6)))
    fast.close()


def test_a_second_derivative_after_a_replacement_is_refused():
    model = layers()
    fast, x = autopar.compile(model, ["cpu"]), torch.randn(4, 6, requires_grad=True)
    output = fast(x).square().sum()
    other_values(model)
    (first,) = torch.autograd.grad(output, x, create_graph=True)
    with pytest.raises(RuntimeError, match="there is no second derivative"):
        first.square().sum().backward()
    fast.close()
