"""Models of equal layers, to be captured on the meta device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, LENGTH, VOCABULARY = 32, 16, 96


class Layer(nn.Module):
    """Attention and a perceptron, each with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (4, HIDDEN // 4)).transpose(1, 2) for part in (q, k, v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Tied(nn.Module):
    """Layers between an embedding and a head that share their weights."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Numbered(nn.Module):
    """Layers that are asked for by number, so that none may be left out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(layers))

    def forward(self, x):
        for number in range(6):
            x = torch.relu(self.layers[number](x))
        return x


def tied(batch: int = 4):
    """A model of eight layers and its tokens."""
    return Tied(8), (torch.zeros(batch, LENGTH, dtype=torch.long),)


def numbered(batch: int = 4):
    """A model whose layers have numbers, and its input."""
    return Numbered(6), (torch.zeros(batch, HIDDEN),)
