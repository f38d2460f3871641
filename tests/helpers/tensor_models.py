"""Models whose layers can be split over ranks, or look as if they could."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(width: int = 16, dropout: float = 0.0) -> nn.Sequential:
    """Two linears and what lies between."""
    return nn.Sequential(
        nn.Linear(8, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 8), nn.Dropout(dropout)
    )


class Gated(nn.Module):
    """A gated MLP: two columns, one row."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, width, bias=False), nn.Linear(8, width, bias=False)
        self.down = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Causal self-attention; `sizes` reads all sizes of its inputs, as most code does, else heads are `-1`."""

    def __init__(self, width: int, heads: int, sizes: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.sizes, self.dropout = heads, sizes, dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads if self.sizes else -1, width // self.heads)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout).transpose(1, 2)
        return self.o(y.reshape(batch, length, width if self.sizes else -1))


class Block(nn.Module):
    """Attention and MLP, each added to what came in."""

    def __init__(self, width: int, heads: int, sizes: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, sizes)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Two blocks, the first reading sizes and the second not, and an embedding that is the head's weight too."""

    def __init__(self, heads: int = 4, width: int = 24, words: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(8, width)
        nn.init.normal_(self.words.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(width, heads, sizes) for sizes in (True, False))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Averaged(nn.Module):
    """Code that reads how many features there are: a part of them has another number."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("scale", torch.full((3, 1), 2.0))
        self.mixed = mixed

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = y / y.shape[-1]
        # DTensor refuses plain tensors beside it.
        return self.down(y * self.scale if self.mixed else y)


class Functional(nn.Module):
    """Dropout by a function, of what a learned norm makes for both ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(nn.functional.dropout(self.norm(x), 0.5, self.training)).relu())


class Learned(nn.Module):
    """A learned factor that all ranks would read, each for a part of its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.factor = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.factor)
