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
    share_weights(model, None, torch.device("cpu"))
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


def _rows_of_their_own(rank: int) -> tuple[list[int], list[float]]:
    torch.manual_seed(rank)
    model = Last()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"], process_group=True)
    for _ in range(2):
        step(torch.randn(2 + rank, 3), torch.zeros(2 + rank, 2))
    step.close()
    return [*model.last.shape], model.norm.running_mean.tolist()


def test_buffers_of_another_size_on_each_rank_stay_its_own():
    (first, mean), (second, other) = ranks(2, _rows_of_their_own)
    assert first == [2, 2] and second == [3, 2] and mean == other


def _inferred(rank: int) -> list[float]:
    torch.manual_seed(rank)
    model = Shifted(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"], process_group=True)
    for _ in range(2):
        step(torch.ones(2, 3), torch.zeros(2, 2))
    step.close()
    return [*model.shift.tolist(), *model.layer.weight.flatten().tolist()]


def test_a_buffer_of_inference_mode_is_that_of_the_first_rank_too():
    first, second = ranks(2, _inferred)
    assert first == second and first[:2] == [1.0, 1.0]
