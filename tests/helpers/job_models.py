"""Small models that jobs of several processes train, with a batch and a loss each, from a seed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROWS = 16


class MLP(nn.Module):
    """Six layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(16, 16), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class SkippingCNN(nn.Module):
    """Convolutions whose results are read again much later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = torch.relu(self.norm(self.first(x)))
        late = torch.relu(self.second(early)) + early
        return self.last(self.third(torch.cat([late, early], 1)).flatten(1))


class GPT(nn.Module):
    """Tokens, positions, a causal mask, and a head that is the embedding."""

    def __init__(self, vocabulary: int = 50, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(16, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        length = tokens.shape[1]
        mask = torch.triu(torch.full((length, length), -torch.inf, dtype=self.positions.dtype), 1)
        x = self.tokens(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.head(x)}


def made(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model `mlp`, `cnn`, `gpt` or `gpt of 1` layer in float64, and inputs and targets of `ROWS` rows: alike in
    every process."""
    torch.manual_seed(0)
    if name.startswith("gpt"):
        network = GPT(layers=1 if name == "gpt of 1" else 2).double()
        return network, torch.randint(0, 50, (ROWS, 16)), torch.randint(0, 50, (ROWS, 16))
    if name == "cnn":
        x = torch.randn(ROWS, 3, 8, 8, dtype=torch.float64)
        return SkippingCNN().double(), x, torch.randint(0, 10, (ROWS,))
    return MLP().double(), torch.randn(ROWS, 16, dtype=torch.float64), torch.randint(0, 16, (ROWS,))


def loss(outputs: torch.Tensor | dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Cross entropy, a mean over rows."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> list[float]:
    """Losses of so many steps of the plain loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        made = loss(model(x), y)
        made.backward()
        optimizer.step()
        found.append(float(made))
    return found


@functools.cache
def stepped(job: Any, x: torch.Tensor, y: torch.Tensor, steps: int) -> list[float]:
    """The losses of so many steps of a job of `autopar.distribute` with SGD, as `trained` takes them."""
    optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(float(job.step(x, target=y)))
        optimizer.step()
    return losses


def alone(name: str, steps: int) -> tuple[list[float], nn.Module]:
    """Losses of so many steps of one process, and the model after them."""
    model, x, y = made(name)
    return trained(model, x, y, steps), model


@functools.cache
def chained(name: str, rows: int) -> tuple[Any, nn.Module]:
    """The units of a model for so many rows, and that model; ranks change their own copy, so that only forks may."""
    from autopar.distributed.pipeline.units import units

    model, x, _ = made(name)
    return units(model, (x[:rows],), {}), model


def prepare(cases: list[tuple[str, int]], steps: int) -> None:
    """Cache for forks what one process finds, and the units, of each model and its rows."""
    for name, rows in cases:
        alone(name, steps)
        chained(name, rows)
