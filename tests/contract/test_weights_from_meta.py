"""A model that is made and compiled on meta, and gets its weights before the first call."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar

pytestmark = pytest.mark.slow

TWO = ["cpu", "emulated:0"]


class Packed(nn.Module):
    """A linear layer of 4-bit weights, two in a byte."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("nibbles", torch.randint(256, (size, size // 2), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(size, 1) * 0.05)

    def forward(self, x):
        low, high = self.nibbles & 15, self.nibbles >> 4
        return F.linear(x, (torch.stack([low, high], -1).flatten(1).to(x.dtype) - 8) * self.scale)


def net():
    layers = [part for _ in range(2) for part in (nn.Linear(32, 32), nn.GELU(), Packed(32))]
    return nn.Sequential(*layers, nn.Linear(32, 4)).eval().requires_grad_(False)


def filled(seed):
    torch.manual_seed(seed)
    return net()


def on_meta():
    with torch.device("meta"):
        return net()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "round_robin", "home": "cpu"},
        {"policy": "single emulated:0", "home": "cpu", "memory": {"emulated:0": 20_000}},
        {"policy": "round_robin", "home": {"0": "cpu"}},
        {"policy": "round_robin", "memory": {"emulated:0": 100_000}},
    ],
    ids=["streamed", "streamed under a cap", "one layer streamed", "under a cap"],
)
def test_each_checkpoint_that_is_assigned(options):
    model = on_meta()
    fast = autopar.compile(model, TWO, split=None, **options)
    for seed in (1, 2):
        plain = filled(seed)
        model.load_state_dict(copy.deepcopy(plain.state_dict()), assign=True)
        for rows in (4, 3, 2):
            x = torch.randn(rows, 32)
            torch.testing.assert_close(fast(x), plain(x))


def test_memory_that_is_made_and_filled():
    model = on_meta()
    fast = autopar.compile(model, TWO, split=None, policy="round_robin", home="cpu")
    model.to_empty(device="cpu").load_state_dict(filled(1).state_dict())
    x = torch.randn(4, 32)
    torch.testing.assert_close(fast(x), filled(1)(x))
