"""Networks of many branches that several suites build, each in sizes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with a ReLU between each two."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def transformer(width: int, layers: int) -> dict[str, int]:
    """Settings that configurations of transformers share: heads of 64, a feed-forward part four times as wide."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
            "intermediate_size": 4 * width}  # fmt: skip


class Recurrent(nn.Module):
    """Stacks of recurrent layers beside each other over one sequence, and a linear layer over their last states."""

    def __init__(self, stacks: Sequence[nn.LSTM | nn.GRU], answers: int) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(stacks)
        self.head = nn.Linear(sum(stack.hidden_size for stack in stacks), answers)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (batch, answers) of sequences (batch, length, features)."""
        scores: Tensor = self.head(torch.cat([stack(x)[0][:, -1] for stack in self.stacks], 1))
        return scores


class Recommender(nn.Module):
    """Embedding bags and an MLP of numbers, their products, and an MLP above; `hidden` are the widths within both.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
    """

    def __init__(self, bags: int, rows: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(bags))
        self.below = nn.Sequential(*mlp(13, *hidden, width), nn.ReLU())
        self.above = mlp(width + bags * (bags + 1) // 2, *hidden, 1)
        self.pairs: Tensor
        self.register_buffer("pairs", torch.triu_indices(bags + 1, bags + 1, 1), persistent=False)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Scores (batch, 1) of numbers (batch, 13) and row ids (bags, batch, ids in a bag)."""
        dense = self.below(numbers)
        found = torch.stack([dense, *(bag(own) for bag, own in zip(self.bags, ids))], 1)
        products = found @ found.transpose(1, 2)
        scores: Tensor = self.above(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))
        return scores


class Experts(nn.Module):
    """A residual layer: a mixture of MLPs, of which a gate counts the `best` for each row."""

    def __init__(self, experts: int, width: int, best: int) -> None:
        super().__init__()
        self.gate, self.best = nn.Linear(width, experts), best
        self.experts = nn.ModuleList(mlp(width, 4 * width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """The argument (…, width) plus the mixture, in the same shape."""
        scores = self.gate(x)
        if self.best < len(self.experts):
            least = scores.topk(self.best, -1).values[..., -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        made = torch.stack([expert(x) for expert in self.experts], -2)
        mixed: Tensor = x + (made * scores.softmax(-1)[..., None]).sum(-2)
        return mixed
