"""A model with a float that varies from call to call, and how often it was captured."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

VALUES = (0.1, 0.2, 0.7, -1.5, 0.0, -0.0, 1.0, 2.5, 1e-30)


class Scaled(nn.Module):
    """A float as an argument of operators, in arithmetic, and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, t: float) -> tuple[Any, ...]:
        y = self.linear(x) * t + torch.full((4,), t) + x.shape[0] * t
        return y, nn.functional.leaky_relu(x, t), x * math.sqrt(abs(t)), t * 2


def captures(fast: Any) -> int:
    served = fast._placement.session.graphs
    assert not any(each.written for each in served), [each.written for each in served]
    return len(served)


def alike(ours: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    for one, other in zip(ours, right, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(one.signbit(), other.signbit())
        else:
            assert one == other and type(one) is type(other)
