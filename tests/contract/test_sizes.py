"""Batch sizes and lengths in any order: results are eager's, and few captures serve all sizes."""

from __future__ import annotations

import random

import pytest
import torch
from machines import MACHINES
from models import MODELS, assert_same

import autopar

PATTERNS = {
    "growing": [(rows, 5) for rows in range(1, 9)],
    "in_turn": [(8, 5), (3, 5)] * 4,
    "short_last": [(8, 5), (8, 5), (8, 5), (2, 5)] * 2,
    "both": [(random.Random(i).randint(1, 9), random.Random(-i).randint(1, 9)) for i in range(8)],
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("where", ["cpu", "devices", "halves"])
def test_results_are_eagers_for_each_size(pattern: str, where: str) -> None:
    torch._dynamo.reset()
    devices, options = MACHINES[where]
    plain, model = (MODELS["attention"].model().eval() for _ in range(2))
    fast = autopar.compile(model, devices, **options)
    with torch.no_grad():
        for rows, length in PATTERNS[pattern]:
            x = torch.randn(rows, length, 8, dtype=torch.float64)
            assert_same(fast(x), plain(x))
    assert "as written" not in fast.explain()


@pytest.mark.slow
def test_gradients_are_eagers_for_each_size() -> None:
    devices, options = MACHINES["halves"]
    plain, model = (MODELS["recurrent"].model() for _ in range(2))
    fast = autopar.compile(model, devices, **options)
    for rows, length in PATTERNS["both"]:
        x = torch.randn(rows, length, 6, dtype=torch.float64)
        ours = torch.autograd.grad(fast(x).square().sum(), [*model.parameters()])
        assert_same(ours, torch.autograd.grad(plain(x).square().sum(), [*plain.parameters()]))
