"""Weights and buffers of rank 0 on all ranks, whatever their dtypes and wherever they were made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.ranks import ranks
from torch import nn

import autopar

pytestmark = pytest.mark.slow

DTYPES = (torch.complex64, torch.int16, torch.bool, torch.float8_e4m3fn, torch.bfloat16)


class Buffers(nn.Module):
    """A buffer of each dtype, an empty one and one of a single element."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        numbers = torch.arange(4) % 2 + rank
        for dtype in DTYPES:
            self.register_buffer(f"as_{str(dtype).partition('.')[2]}", numbers.to(dtype))
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("one", torch.tensor(float(rank)))


def _shared(rank: int) -> list[Any]:
    from autopar.training.messages import share_weights

    model = Buffers(rank)
    share_weights(model.named_buffers(), None, torch.device("cpu"))
    return [buffer.to(torch.complex64).real.tolist() for buffer in model.buffers()]


def test_buffers_of_any_dtype_are_sent():
    first, second = ranks(2, _shared)
    assert first == second and first[:2] == [[0, 1, 0, 1]] * 2 and first[-1] == 0


class Shifted(nn.Module):
    """A buffer that an evaluation in inference mode has made."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        with torch.inference_mode():
            self.register_buffer("shift", torch.full((2,), 1.0 + rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift


class Last(nn.Module):
    """A buffer that holds something of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("last", torch.zeros(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.norm(self.layer(x))
        self.last = found.detach()
        return found


def _stepped(rank: int) -> tuple[list[int], list[float], list[float]]:
    """After steps of two models: the shape of a buffer of own rows, moving statistics, and what a buffer of
    inference mode and weights hold."""
    torch.manual_seed(rank)
    models = Last(), Shifted(rank)
    for model, rows in zip(models, (2 + rank, 2)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"], process_group=True)
        for _ in range(2):
            step(torch.randn(rows, 3), torch.zeros(rows, 2))
        step.close()
    last, shifted = models
    shared = [*shifted.shift.tolist(), *shifted.layer.weight.flatten().tolist()]
    return [*last.last.shape], last.norm.running_mean.tolist(), shared


def test_buffers_are_the_first_ranks_but_those_of_another_size_on_each():
    (first, mean, shared), (second, other, others) = ranks(2, _stepped)
    assert first == [2, 2] and second == [3, 2] and mean == other
    assert shared == others and shared[:2] == [1.0, 1.0]
