"""A model and a compiler for tests of kernels that serve calls of all sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from compilers import Folding
from torch import nn

SIZES = [(3, 4), (4, 6), (5, 5), (3, 9), (7, 4), (2, 20), (6, 6), (4, 8), (8, 30)]


@dataclass(eq=False)
class Open(Folding):
    """Compiles for all sizes."""

    any_size: bool = True


class Attention(nn.Module):
    """Sizes as arguments, sums and quotients of them, results in several layouts, and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.packed, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, length = ids.shape
        q, k, v = self.packed(self.table(ids)).view(rows, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        y = (
            nn.functional.scaled_dot_product_attention(q, k, v, mask)
            .transpose(1, 2)
            .reshape(rows * length, 16)
        )
        made = self.out(y).view(rows, length, 16)
        places = torch.arange(length + 1)
        return made[:, length // 2 :], made.transpose(0, 1).relu(), places * 2, made.argmax(-1) + ids


def ids(sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(50, sizes)


def alike(fast: Any, model: nn.Module, sizes: tuple[int, ...]) -> None:
    x = ids(sizes)
    for ours, right in zip(fast(x), model(x), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)
        assert ours.stride() == right.stride()
