"""A boolean mask that several attentions share is made into numbers once, and the answer is eager's bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attention

import autopar

CONVERTED = "aten.where.Scalar"


class Layers(nn.Module):
    """Attentions with one mask, given by position or by name."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in range(self.layers):
            x = attention(x, x, x, mask) if layer % 2 else attention(x, x, x, attn_mask=mask)
        return x


def conversions(fast: autopar.Compiled) -> int:
    return sum(task.target == CONVERTED for task in fast.plan.costed.graph.tasks)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    mask = torch.rand(2, 1, 6, 6) > 0.5
    # A row that sees nothing.
    mask[0, 0, 3] = False
    return torch.randn(2, 4, 6, 8, dtype=dtype), mask


@pytest.mark.parametrize("layers", [2, 5])
def test_once_for_all_layers(layers: int) -> None:
    model = Layers(layers)
    fast, (x, mask) = autopar.compile(model, ["cpu"]), inputs()
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(fast(x, mask), model(x, mask))
    assert conversions(fast) == 1


@pytest.mark.parametrize(
    ("layers", "dtype", "boolean"),
    [
        (1, torch.float32, True),
        (3, torch.bfloat16, True),
        (3, torch.float64, True),
        (3, torch.float32, False),
    ],
    ids=["one layer", "low precision", "other precision than the default", "numbers"],
)
def test_other_masks_stay(layers: int, dtype: torch.dtype, boolean: bool) -> None:
    model = Layers(layers)
    fast, (x, mask) = autopar.compile(model, ["cpu"]), inputs(dtype)
    mask = mask if boolean else mask.to(dtype)
    with torch.no_grad():
        assert torch.equal(fast(x, mask), model(x, mask))
    assert conversions(fast) == 0


class Changing(nn.Module):
    """Changes its mask between two attentions."""

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        mask = given.clone()
        x = attention(x, x, x, mask)
        mask[..., 0] = True
        x = attention(x, x, x, mask)
        return attention(x, x, x, mask)


def test_a_mask_that_changes_in_place() -> None:
    fast, (x, mask) = autopar.compile(Changing(), ["cpu"]), inputs()
    with torch.no_grad():
        assert torch.equal(fast(x, mask), Changing()(x, mask))
    assert conversions(fast) == 1


@pytest.mark.slow
def test_open_sizes() -> None:
    model = Layers(3)
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for rows in (6, 4, 9, 5):
            x, mask = torch.randn(2, 4, rows, 8), torch.rand(2, 1, rows, rows) > 0.3
            torch.testing.assert_close(fast(x, mask), model(x, mask))


@pytest.mark.slow
def test_the_batch_is_split_as_before() -> None:
    model, (x, mask) = Layers(3), inputs()
    fast = autopar.compile(model, ["cpu", "emulated:0"], split=2, policy="round_robin")
    with torch.no_grad():
        torch.testing.assert_close(fast(x, mask), model(x, mask))
    assert fast.plan.costed.graph.split
