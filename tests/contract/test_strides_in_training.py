"""Strides of gradients, momentum and weights in training with a split batch: eager's."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import autopar

HALVES: dict[str, Any] = {"devices": ["cpu", "emulated:0"], "policy": "round_robin", "split": 2}


def convolutions(count: int) -> nn.Module:
    """More than eight small gradients are summed together."""
    layers = (layer for _ in range(count) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)))
    return nn.Sequential(*layers, nn.Conv2d(4, 4, 1)).to(memory_format=torch.channels_last)


def images() -> torch.Tensor:
    return torch.randn(4, 4, 6, 5).to(memory_format=torch.channels_last)


def strides(tensors: Iterable[torch.Tensor]) -> list[list[int]]:
    """Strides along axes of more than one element."""
    return [[step for step, size in zip(t.stride(), t.shape) if size > 1] for t in tensors]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_a_loop_of_ones_own(count: int):
    torch.manual_seed(0)
    plain = convolutions(count)
    model = copy.deepcopy(plain)
    fast, found = autopar.compile(model, **HALVES), []
    for call, held in ((plain, plain), (fast, model)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(held.parameters(), 0.05, momentum=0.9)
        x, weights = images().requires_grad_(), [*held.parameters()]
        outputs = call(x)
        gradients = torch.autograd.grad(outputs.square().mean(), [x, *weights])
        call(images()).square().mean().backward()
        optimizer.step()
        moments = (optimizer.state[weight]["momentum_buffer"] for weight in weights)
        found.append([outputs, *gradients, *(weight.grad for weight in weights), *moments, *weights])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert strides(found[1]) == strides(found[0])
    if count == 1:
        # torch chooses memory formats by the strides along axes of one element too.
        assert [t.stride() for t in found[1]] == [t.stride() for t in found[0]]
    fast.close()


@pytest.mark.slow
def test_a_step():
    torch.manual_seed(0)
    plain = convolutions(4)
    model = copy.deepcopy(plain)
    ours, eagers = (torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (model, plain))
    step = autopar.train_step(model, None, ours, step_fn=lambda m, x: m(x).square().mean(), **HALVES)
    for _ in range(2):
        x = images()
        eagers.zero_grad()
        plain(x).square().mean().backward()
        eagers.step()
        step(x)
    pairs = zip(model.parameters(), plain.parameters())
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        states = [ours.state[one]["momentum_buffer"], one], [eagers.state[other]["momentum_buffer"], other]
        assert strides(states[0]) == strides(states[1])
    step.close()
