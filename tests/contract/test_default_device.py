"""Factories in `forward` under another default device or dtype: results have eager's device and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import autopar


class Grid(nn.Module):
    """Returns a tensor that no argument decides the device of, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), torch.linspace(0, 1, 4)


@contextmanager
def set_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def set_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


DEFAULTS = {
    "torch.device": lambda: torch.device("meta"),
    "set_default_device": set_device,
    "set_default_dtype": set_dtype,
}


@pytest.mark.parametrize("check", ["first", "never"])
@pytest.mark.parametrize("default", DEFAULTS)
def test_factories_follow_the_default_of_the_call(default: str, check: str) -> None:
    model, x = Grid(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"], check=check)
    with torch.no_grad():
        for number in range(8):
            if number % 2:
                with DEFAULTS[default]():
                    made, wanted = fast(x), model(x)
            else:
                made, wanted = fast(x), model(x)
            torch.testing.assert_close(made[0], wanted[0])
            assert (made[1].device, made[1].dtype) == (wanted[1].device, wanted[1].dtype)
            if made[1].device.type != "meta":
                torch.testing.assert_close(made[1], wanted[1])
    if default != "set_default_dtype":
        assert "makes a tensor on meta" in fast.explain()
    fast.close()


@pytest.mark.parametrize("options", [{"devices": ["cpu"]}, {"devices": ["cpu", "emulated:0"], "split": 2}])
def test_a_model_without_factories_is_placed_under_any_default(options: dict[str, object]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(4, 4)
    fast = autopar.compile(model, **options)  # type: ignore[arg-type]
    with torch.device("meta"):
        for _ in range(4):
            made = fast(x)
    torch.testing.assert_close(made, model(x))
    assert "ran as written" not in fast.explain()
    fast.close()
