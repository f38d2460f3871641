"""Models that ranks train on rows of their own, and the one process that trains on all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

SETS = {
    "cpu": {"devices": ["cpu"]},
    "lanes": {"devices": ["cpu*2"], "policy": "round_robin"},
    "mixed": {"devices": ["cpu", "emulated:0"], "policy": "round_robin"},
    "two": {"devices": ["emulated:0", "emulated:1"], "policy": "round_robin", "split": 2},
}
"""What each rank plans for; all but the first use every device whatever it costs."""


class Skips(nn.Module):
    """Convolutions with a skip around two of them."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        # A bias in front of the norm would have a gradient of nothing but rounding.
        self.third, self.norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), norm(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = x + self.norm(self.third(torch.relu(self.second(x))))
        return self.head(torch.relu(x).mean((2, 3)))


class Branches(nn.Module):
    """Experts of which a batch asks one; the last is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.experts = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.experts[which](torch.tanh(self.before(x)))


class Gpt(nn.Module):
    """One block of attention over tokens, whose embedding is the output's matrix too."""

    def __init__(self, width: int = 16, heads: int = 2, words: int = 13, length: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.where = nn.Embedding(words, width), nn.Embedding(length, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = tokens.shape
        x = self.embed(tokens) + self.where(torch.arange(length))
        parts = self.attend(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, length, -1))
        x = x + self.back(F.gelu(self.wide(self.after(x))))
        return self.out(x).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def normed() -> nn.Module:
    return Skips(nn.BatchNorm2d)


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "skips": Skips, "normed": normed, "gpt": Gpt}
KINDS = {"mlp": "mlp", "cnn": "skips", "gpt": "gpt"}
"""The models of the grid."""


def model(kind: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind]().to(dtype)


def batches(
    kind: str, count: int, rows: int = 8, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[Any, Any]]:
    """Inputs of a model and its targets."""
    draw = torch.Generator().manual_seed(7)
    for _ in range(count):
        if kind == "gpt":
            tokens = (torch.randint(0, 13, (rows, 1), generator=draw) + torch.arange(7)) % 13
            yield tokens[:, :-1], tokens[:, 1:]
        else:
            shape = (rows, 8) if kind == "mlp" else (rows, 3, 6, 6)
            x = torch.randn(shape, generator=draw, dtype=torch.float64)
            # Something to learn: the first numbers of each row.
            yield x.to(dtype), x.flatten(1)[:, :4].sin().to(dtype)


def own(batch: tuple[Any, Any], rank: int, count: int) -> tuple[Any, Any]:
    """A rank's rows of a batch."""
    x, y = (item.tensor_split(count)[rank] for item in batch)
    return x, y


def loss_of(kind: str) -> nn.Module:
    return nn.CrossEntropyLoss() if kind == "gpt" else nn.MSELoss()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def trained(
    network: nn.Module, data: Any, kind: str, optimizer: Any = sgd, clip_norm: float | None = None
) -> list[float]:
    """The losses of the plain loop."""
    stepped, criterion, losses = optimizer(network.parameters()), loss_of(kind), []
    for x, y in data:
        stepped.zero_grad()
        loss = criterion(network(x), y)
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        stepped.step()
        losses.append(loss.item())
    return losses


def values(network: nn.Module) -> dict[str, Any]:
    """Parameters and buffers as arrays of their own."""
    return {name: copy.copy(each.numpy(force=True)) for name, each in network.state_dict().items()}


def gradients(network: nn.Module) -> dict[str, Any]:
    return {
        name: None if each.grad is None else copy.copy(each.grad.numpy(force=True))
        for name, each in network.named_parameters()
    }


def same(found: dict[str, Any], expected: dict[str, Any], allowed: float = 1e-9) -> None:
    """AssertionError where two sets of arrays differ in names or values."""
    assert [*found] == [*expected]
    for name, wanted in expected.items():
        if wanted is None or found[name] is None:
            assert wanted is found[name], name
        else:
            numpy.testing.assert_allclose(found[name], wanted, rtol=0, atol=allowed, err_msg=name)


def averaged(losses: list[list[float]]) -> list[float]:
    """The mean over ranks of the losses of each step."""
    return [sum(each) / len(each) for each in zip(*losses)]
