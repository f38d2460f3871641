"""Tensors that forward makes of numbers, which torch.compile leaves in the graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import autopar


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[0] = 7
        return torch.where(x > 0, y, torch.tensor(-1.5)) * torch.tensor([1.0, 2, 3, 4])


@pytest.mark.slow
def test_placed_as_eager_and_never_changed():
    model, x = Masked(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    with torch.no_grad():
        for batch in (x, x + 1, torch.randn(5, 4)):
            assert torch.equal(fast(batch), model(batch))
    assert not fast._placement.backend.served[0].written
    fast.close()


@pytest.mark.slow
def test_trained_as_eager():
    model, x = Masked(), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    fast(x).sum().backward()
    twin(x).sum().backward()
    assert torch.allclose(model.linear.weight.grad, twin.linear.weight.grad)
    assert not fast._placement.backend.served[0].written
    fast.close()
