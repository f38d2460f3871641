"""A shape that is read after a tensor's own shape was changed is the new one, which torch.compile does not see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar


class Reshapes(nn.Module):
    def __init__(self, method: str, *args: Any) -> None:
        super().__init__()
        self.method, self.args = method, args

    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        getattr(y, self.method)(*self.args)
        return y + 1, y.size(), y.stride(), y.dim()


@pytest.mark.parametrize(
    "method, args",
    [
        ("as_strided_", ((2, 2), (2, 1))),
        ("squeeze_", (0,)),
        ("swapaxes_", (0, 1)),
        ("swapdims_", (0, 1)),
        ("t_", ()),
        ("transpose_", (0, 1)),
        ("unsqueeze_", (0,)),
    ],
)
@torch.no_grad()
def test_sizes_are_those_after_the_change(method: str, args: Any) -> None:
    model, x = Reshapes(method, *args), torch.arange(4.0).reshape(1, 4)
    expected, found = model(x), autopar.compile(model, "cpu")(x)
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
