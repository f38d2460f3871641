"""Models and the plain training loop that a placed training step is held against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

import autopar

TWO_LANES = ["cpu*2"]
THREE = ["cpu", "emulated:0", "emulated:1"]
FORCED = {"policy": "round_robin", "split": 2}
"""A plan that uses every device and cuts every batch, whatever it costs."""


class Normed(nn.Module):
    """Layers with running statistics in between."""

    def __init__(self) -> None:
        super().__init__()
        # A bias in front of the norm would have a gradient of nothing but rounding.
        self.first, self.norm, self.last = nn.Linear(12, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Tied(nn.Module):
    """One weight read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(12, 12, bias=False), nn.Linear(12, 12)
        self.out.weight = self.into.weight
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.out(torch.tanh(self.into(x)))))


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 16), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(16, 5)
    )


def wide() -> nn.Module:
    """Weights that take more memory than anything else."""
    return nn.Sequential(nn.Linear(12, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 5))


def batches(count: int, rows: int | Sequence[int] = 8, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Inputs of 12 features and classes out of 5."""
    draw = torch.Generator().manual_seed(7)
    sizes = [rows] * count if isinstance(rows, int) else [rows[i % len(rows)] for i in range(count)]
    return [
        (
            torch.randn(size, 12, generator=draw, dtype=torch.float64).to(dtype),
            torch.randint(0, 5, (size,), generator=draw),
        )
        for size in sizes
    ]


def plain(
    model: nn.Module,
    criterion: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    data: Sequence[Any],
    *,
    clip_norm: float | None = None,
    scaler: Any = None,
    autocast: torch.dtype | None = None,
    each: int = 1,
) -> list[float]:
    """The losses of the loop everybody writes; an optimizer step after `each` batches."""
    losses = []
    for index, (x, y) in enumerate(data, 1):
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            loss = criterion(model(x), y)
        (scaler.scale(loss) if scaler else loss).backward()
        losses.append(loss.item())
        if index % each:
            continue
        if scaler and clip_norm is not None:
            scaler.unscale_(optimizer)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return losses


class Pair:
    """The same model twice, one for the plain loop and one for `step`, each with its optimizer."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        devices: Any = THREE,
        *,
        dtype: torch.dtype = torch.float64,
        criterion: Any = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.plain = model().to(dtype)
        self.model = copy.deepcopy(self.plain)
        self.criterion = criterion or nn.CrossEntropyLoss()
        self.theirs, self.optimizer = (
            optimizer([p for p in m.parameters() if p.requires_grad]) for m in (self.plain, self.model)
        )
        self.step = autopar.train_step(
            self.model, self.criterion, self.optimizer, devices, **{**FORCED, **options}
        )

    def losses(self, data: Sequence[Any], **options: Any) -> tuple[list[float], list[float]]:
        """Both loops over the data, from one seed."""
        torch.manual_seed(3)
        expected = plain(self.plain, self.criterion, self.theirs, data, **options)
        torch.manual_seed(3)
        return [self.step(x, y).item() for x, y in data], expected

    def same(self, data: Sequence[Any], limit: float = 1e-9, **options: Any) -> None:
        """Assert that both loops give the same losses, and leave the same weights, buffers and optimizer state."""
        found, expected = self.losses(data, **options)
        assert far(found, expected) <= limit, (found, expected)
        self.same_after(limit)

    def same_after(self, limit: float = 1e-9) -> None:
        """Assert that both loops left the same."""
        ours, theirs = self.model.state_dict(), self.plain.state_dict()
        for name, tensor in theirs.items():
            assert far(ours[name], tensor) <= limit, name
        mine, other = self.optimizer.state_dict()["state"], self.theirs.state_dict()["state"]
        assert mine.keys() == other.keys()
        for index, entries in other.items():
            for entry, value in entries.items():
                if isinstance(value, torch.Tensor):
                    assert far(mine[index][entry], value) <= limit, (index, entry)
        assert all(parameter.grad is None for parameter in self.model.parameters() if parameter.requires_grad)


def far(found: Any, reference: Any) -> float:
    """The largest difference, relative to the largest of the reference."""
    a, b = (torch.as_tensor(item, dtype=torch.float64).flatten() for item in (found, reference))
    if not b.numel():
        return 0.0
    difference, scale = (a - b).abs().max().item(), b.abs().max().item()
    return difference / scale if scale else difference
