"""Models whose batch can be cut, each with inputs for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(2)),
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return self.head(x.view(x.size(0), -1)).log_softmax(-1)


class Block(nn.Module):
    """Pre-norm transformer encoder block with the batch among the sizes of its views."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        if mask is not None:
            mask = mask[:, None, None, :].expand(batch, 1, length, length)
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch * length, width)).view(
            batch, length, width
        )
        return x + self.mlp(self.ln2(x))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(9, 16)
        self.start = nn.Parameter(torch.randn(1, 1, 16))
        self.block, self.head = Block(), nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = torch.cat([self.start.expand(ids.shape[0], -1, -1), x], 1)
        x = self.block(x)
        scores = self.head(x)
        return {"scores": scores, "next": scores[:, -1].argmax(-1), "first": x[:, 0]}


class Ends(nn.Module):
    """The batch ends in a mean, and layers follow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> Any:
        y = self.one(x).tanh() + side
        return self.two(y.mean(0)), y


class Mixes(nn.Module):
    """Statistics over the batch between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.norm(self.one(x)).relu())


class Later(nn.Module):
    """Sequence first: the batch is axis 1 of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Strided(nn.Module):
    """The batch merged with the axis before it, rejoined while it is."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        batch, length, width = x.shape
        y = self.one(x.transpose(0, 1).reshape(length * batch, width)).relu()
        return self.two(y).view(length, batch, 4).transpose(0, 1), y


def twice(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


torch.manual_seed(0)
D = {"dtype": torch.float64}
MODELS: dict[str, tuple[Any, Callable[[int], tuple[Any, ...]]]] = {
    "mlp": (MLP(), lambda n: (torch.randn(n, 8, **D),)),
    "conv": (ConvNet(), lambda n: (torch.randn(n, 3, 14, 14, **D),)),
    "block": (Block(), lambda n: (torch.randn(n, 5, 16, **D),)),
    "masked": (Block(), lambda n: (torch.randn(n, 5, 16, **D), torch.ones(n, 5, dtype=torch.bool))),
    "words": (Words(), lambda n: (torch.randint(30, (n, 6)),)),
    "ends": (Ends(), lambda n: (torch.randn(n, 8, **D), torch.randn(8, **D))),
    "mixes": (Mixes(), lambda n: (torch.randn(n, 8, **D),)),
    "later": (Later(), lambda n: (torch.randn(5, n, 16, **D),)),
    "heads": (
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        lambda n: (torch.randn(n, 5, 16, **D),),
    ),
    "strided": (Strided(), lambda n: (torch.randn(n, 5, 6, **D),)),
    "lstm": (nn.LSTM(4, 8, batch_first=True), lambda n: (torch.randn(n, 5, 4, **D),)),
    "gru": (nn.GRU(4, 8), lambda n: (torch.randn(5, n, 4, **D),)),
}
for _model, _ in MODELS.values():
    _model.double().eval()
MODELS["mixes"][0].train()
