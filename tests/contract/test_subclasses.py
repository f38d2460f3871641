"""Subclasses of tensors, and modes, that redefine operators by `__torch_function__`: calls run as written, counted.
Subclasses that only carry their class through are placed, and outputs have eager's class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import autopar

WAYS: list[dict[str, Any]] = [
    {"devices": ["cpu"]},
    {"devices": ["cpu", "emulated:0"], "policy": "round_robin", "split": None},
]


class Carried(torch.Tensor):
    pass


class Clamped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made.clamp(max=0.5) if func in (torch.add, torch.Tensor.add) else made


class Larger(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 1.25 if isinstance(made, Tensor) and made.is_floating_point() else made


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.shift: Any = torch.zeros(4)

    def forward(self, x: Any) -> Tensor:
        x = x["x"] if isinstance(x, dict) else x
        return torch.add(self.linear(x).relu(), self.shift + 1.0)


def same(fast: Any, model: nn.Module, x: Any) -> None:
    for _ in range(3):
        made, wanted = fast(x), model(x)
        assert type(made) is type(wanted)
        torch.testing.assert_close(made.as_subclass(Tensor), wanted.as_subclass(Tensor))


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [Carried, Clamped])
def test_an_argument(kind: type, nested: bool, options: dict[str, Any]) -> None:
    model, x = Net(), torch.randn(3, 4)
    fast: Any = autopar.compile(model, **options)

    def given(x: Tensor) -> Any:
        return {"x": x} if nested else x

    with torch.no_grad():
        same(fast, model, given(x))
        same(fast, model, given(x.as_subclass(kind)))
        same(fast, model, given(x))
    gradients = [
        torch.autograd.grad(each(given(x.as_subclass(kind))).sum(), [*model.parameters()])
        for each in (fast, model)
    ]
    torch.testing.assert_close(*gradients)
    text = fast.explain()
    assert ("redefines operators" in text) == (kind is Clamped)
    fast.close()


def test_state() -> None:
    model, x = Net(), torch.randn(3, 4)
    fast: Any = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        same(fast, model, x)
        model.shift = torch.zeros(4).as_subclass(Clamped)
        same(fast, model, x)
    assert "redefines operators" in fast.explain()
    fast.close()


@pytest.mark.parametrize("check", ["first", "never"])
def test_a_mode(check: Any) -> None:
    model, x = Net(), torch.randn(3, 4)
    fast: Any = autopar.compile(model, ["cpu"], check=check)
    with torch.no_grad():
        for _ in range(2):
            same(fast, model, x)
            with Larger():
                made, wanted = fast(x), model(x)
            torch.testing.assert_close(made, wanted)
    assert "Larger, a TorchFunctionMode, is active" in fast.explain()
    fast.close()


def test_a_training_step_refuses_them() -> None:
    model = Net()
    step = autopar.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), ["cpu"])
    with pytest.raises(autopar.AutoparError, match="Clamped, the class of a tensor, redefines operators"):
        step(torch.randn(3, 4).as_subclass(Clamped), torch.randn(3, 4))
