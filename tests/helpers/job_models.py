"""Small models that jobs of several processes train, with a batch and a loss each, from a seed."""

from __future__ import annotations

import functools
from itertools import pairwise
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


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, foreach=False)


def trained(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, optimizer: Any = None
) -> list[float]:
    """Losses of so many steps of the plain loop, with SGD if no optimizer is given."""
    optimizer = optimizer or sgd(model.parameters())
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        made = loss(model(x), y)
        made.backward()
        optimizer.step()
        found.append(float(made))
    return found


def stepped(job: Any, x: torch.Tensor, y: torch.Tensor, steps: int, optimizer: Any = None) -> list[float]:
    """The losses of so many steps of a job of `autopar.distribute`, as `trained` takes them."""
    optimizer = optimizer or sgd(job.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(float(job.step(x, target=y)))
        optimizer.step()
    return losses


def job_of(chain: Any, *shape: Any, criterion: Any = loss, place: Any = lambda stage: stage) -> Any:
    """A job by hand: the units in equal parts, for positions, chunks, replicas, micro-batches and a schedule. A last
    word "sharded": each stage in two groups, sharded over its replicas."""
    from autopar.distributed.pipeline.job import Distributed
    from autopar.ir.distribution import Distribution, Stage
    from autopar.ir.hosts import Hosts

    positions, chunks, replicas, micro_batches, schedule, *sharded = shape
    count = positions * chunks
    ends = [len(chain.nodes) * i // count for i in range(count + 1)]
    stages = []
    for first, stop in pairwise(ends):
        groups = ((*range(first + 1, stop, (stop - first + 1) // 2), stop),) if sharded else ()
        stages.append(Stage(first, stop, 1, 1, 1, 1, 1, *groups))
    hosts = Hosts.declare(f"{positions * replicas} x cpu over ethernet-1")
    names = [host.name for host in hosts.hosts]
    rows = tuple(tuple(names[r * positions : (r + 1) * positions]) for r in range(replicas))
    batch = chain.rows * replicas * micro_batches
    plan = Distribution(
        "model", chain.names, hosts, tuple(stages), rows, micro_batches, schedule, batch, 1.0, 1.0,
        (1,) * positions,
    ).check()  # fmt: skip
    return Distributed(chain, plan, criterion, None, torch.device("cpu"), place)


@functools.cache
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
