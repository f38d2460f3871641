"""Tensors of the call that forward changes in place where a gradient goes through the change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import autopar


class Masks(nn.Module):
    """Writes a weight into a tensor that comes from outside, between two graph breaks or in one graph."""

    def __init__(self, broken: bool, reads: bool) -> None:
        super().__init__()
        self.first, self.fill = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.broken, self.reads = broken, reads
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x) if self.reads else x.clone()
        if self.broken:
            torch._dynamo.graph_break()
        h[1:3] = self.fill
        if self.broken:
            torch._dynamo.graph_break()
        with torch.no_grad():
            self.seen.lerp_(self.fill, 0.5)
        return h * 2


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_gradients_go_through(broken, reads):
    torch.manual_seed(0)
    model, x = Masks(broken, reads), torch.randn(5, 4)
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    for _ in range(2):
        for called in (fast, twin):
            called(x).pow(2).sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters()):
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.allclose(ours.grad, theirs.grad), name
    assert torch.allclose(model.seen, twin.seen)
    fast.close()


def test_an_argument_that_is_given_a_weight():
    fill = nn.Parameter(torch.randn(4))

    def put(into: torch.Tensor) -> None:
        into[0] = fill

    fast = autopar.compile(put, ["cpu"])
    for _ in range(2):
        into = torch.zeros(2, 4)
        fast(into)
        assert into.requires_grad
        into.sum().backward()
    assert torch.equal(fill.grad, torch.full((4,), 2.0))
    fast.close()
