"""Models whose example inputs have few or many rows, to be captured on the meta device by `whatif`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LAYERS = 1024, 6


class Masked(nn.Module):
    """Attention with positions and a mask that do not depend on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x):
        at = torch.arange(x.shape[1], device=x.device)
        turned = (at[:, None] * torch.exp(-torch.arange(64, device=x.device) / 64.0)).sin()
        q, k, v = ((part * turned)[:, None] for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=at[:, None] >= at[None, :])[:, 0]


class Pairs(nn.Module):
    """A similarity of each row with each other: FLOPs and bytes grow with the square of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        return self.one(x) @ self.other(y).T


class RowByRow(nn.Module):
    """A loop over the rows, so that each number of rows has other operators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.stack([self.layer(x[row]).relu() for row in range(x.shape[0])])


def perceptron(rows):
    """Equal layers, of which each reads 4 MB of weights."""
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]), (torch.ones(rows, WIDTH),)


def image(rows):
    """Convolutions with a batch norm."""
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 4)), (torch.ones(rows, 3, 32, 32),)


def masked(rows):
    """Attention, of which the mask takes as long as one row."""
    return Masked(), (torch.ones(rows, 256, 64),)


def pairs(rows):
    """Two inputs of as many rows."""
    return Pairs(), (torch.ones(rows, 8), torch.ones(rows, 8))


def row_by_row(rows=2):
    """A model that is captured with two rows."""
    return RowByRow(), (torch.ones(rows, 8),)
