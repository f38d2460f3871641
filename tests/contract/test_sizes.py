"""Batch sizes and lengths in any order: results are eager's, and few captures serve all sizes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from machines import THREE, placed
from models import MODELS, assert_same
from torch import nn

import autopar

pytestmark = pytest.mark.slow

PATTERNS = {
    "growing": [(rows, 5) for rows in range(1, 9)],
    "in_turn": [(8, 5), (3, 5)] * 4,
    "short_last": [(8, 5), (8, 5), (8, 5), (2, 5)] * 2,
    "both": [(random.Random(i).randint(1, 9), random.Random(-i).randint(1, 9)) for i in range(8)],
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("where", ["cpu", "devices", "halves"])
def test_results_are_eagers_for_each_size(pattern: str, where: str) -> None:
    torch._dynamo.reset()
    plain, model = (MODELS["attention"].model().eval() for _ in range(2))
    fast = autopar.compile(model, **placed(where, model))
    with torch.no_grad():
        for rows, length in PATTERNS[pattern]:
            x = torch.randn(rows, length, 8, dtype=torch.float64)
            assert_same(fast(x), plain(x))
    assert "as written" not in fast.explain()


def test_gradients_are_eagers_for_each_size() -> None:
    plain, model = (MODELS["recurrent"].model() for _ in range(2))
    fast = autopar.compile(model, **placed("halves", model))
    for rows, length in PATTERNS["both"]:
        x = torch.randn(rows, length, 6, dtype=torch.float64)
        ours = torch.autograd.grad(fast(x).square().sum(), [*model.parameters()])
        assert_same(ours, torch.autograd.grad(plain(x).square().sum(), [*plain.parameters()]))


class Encoder(nn.Module):
    """Class token, encoder, the batch merged with the positions and taken apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.embed, self.head = (
            nn.Parameter(torch.randn(1, 1, 16)),
            nn.Linear(6, 16),
            nn.Linear(16, 5),
        )
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        x = self.body(torch.cat([self.token.expand(rows, -1, -1), self.embed(x)], 1))
        return self.head(x.reshape(rows * (length + 1), 16)).view(rows, length + 1, 5)[:, 0]


class Recurrences(nn.Module):
    """Recurrent layers of each kind over the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.second, self.third = nn.LSTM(16, 8, batch_first=True), nn.RNN(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)[0])[0])[0].mean(1)


def vectors(rows: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(rows, 6),)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "two axes": (Encoder(), lambda rows: (torch.randn(rows, rows + 3, 6),)),
    "lengths": (Recurrences(), lambda rows: (torch.randn(4, rows, 6),)),
    "second axis": (nn.LSTM(6, 8), lambda rows: (torch.randn(4, rows, 6),)),
    "mean of the batch": (lambda x: x - x.mean(0), vectors),
    "divided by the rows": (lambda x: x.sum(0) / x.shape[0] + torch.ones(x.shape[0], 6), vectors),
    "root of the rows": (lambda x: x * x.shape[0] ** -0.5, vectors),
    "pairs of rows": (lambda x: x @ x.T, vectors),
    "rows returned": (lambda x: (x + 1, x.shape[0], x.shape), vectors),
    "two inputs, whole slices": (
        lambda x, y: torch.cat([x[:, :] * y, y[:, 0:1]], 1),
        lambda rows: (torch.randn(rows, 6), torch.randn(rows, 6)),
    ),
    "every second": (lambda x: x[:, ::2] * 2, lambda rows: (torch.randn(rows, 6, 4)[..., ::2],)),
    "branch": (lambda x: x * 2 if x.shape[0] > 4 else x + 1, vectors),
    "parity": (lambda x: x * 2 if x.shape[0] % 2 else x + 1, vectors),
    "rows in a string": (lambda x: {"y": x + 1, "name": f"{x.shape[0]} rows"}, vectors),
    "loop": (lambda x: torch.stack([row * index for index, row in enumerate(x)]), vectors),
    "across the batch": (lambda x: x.reshape(-1, 4) if x.shape[0] % 2 == 0 else x, vectors),
    "first rows": (lambda x: x[:3] * 2, vectors),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_sizes_in_the_code_of_a_model_are_those_of_the_call(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    model = copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
    fast = autopar.compile(copy.deepcopy(model), THREE, policy="round_robin", split=None)
    for rows in (6, 3, 1, 4):
        args = [x.double() for x in inputs(rows)]
        assert_same(fast(*args), model(*args))
    fast.close()


@torch.no_grad()
def test_a_new_size_is_placed_as_the_first_was() -> None:
    model = MODELS["branches"].model()
    fast = autopar.compile(model, dynamic=True, **placed("devices", model))
    first: dict[str, str] = {}
    for rows in (40, 9, 2):
        fast(torch.randn(rows, 6, dtype=torch.float64))
        device = {placed.cluster: placed.device for placed in fast.plan.placed}
        first = first or {task: device[run.name] for run in fast.plan.costed.clusters for task in run.tasks}
        # Costs decide which tasks form a run; each is where the first of its tasks was.
        assert all(device[run.name] == first[run.tasks[0]] for run in fast.plan.costed.clusters)
    assert len({*first.values()}) > 1
    fast.close()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_shares_of_the_batch_are_those_asked_for_at_every_size(grad: bool) -> None:
    model = MODELS["mlp"].model()
    fast = autopar.compile(model, THREE, dynamic=True, split={"emulated:0": 0.3, "emulated:1": 0.7})
    with torch.set_grad_enabled(grad):
        for rows, parts in ((10, "3 + 7"), (20, "6 + 14"), (30, "9 + 21")):
            x = torch.randn(rows, 6, dtype=torch.float64)
            assert_same(fast(x), model(x))
            assert parts in fast.plan.costed.graph.split
    fast.close()


def test_graphs_with_equal_notes_are_counted() -> None:
    class Broken(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self[0](x)
            torch._dynamo.graph_break()
            return self[1](x)

    fast = autopar.compile(Broken(nn.Linear(4, 4), nn.Linear(4, 4)), ["cpu"])
    with torch.no_grad():
        for rows in (3, 4, 5, 6):
            fast(torch.randn(rows, 4))
    assert fast.explain().count("other sets of sizes") == 1
    assert "in 2 graphs: calls with 2 other sets of sizes" in fast.explain()
