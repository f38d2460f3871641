"""CPU time of a training step with many small parameters on one device: the plain loop and `autopar.train_step`.

Fifty layers of 16 with a LayerNorm each, 200 parameters, batch 32: almost all of it is dispatch. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from autopar.engine.api import train_step

from .timing import interleaved, report

LAYERS, WIDTH, ROWS = 50, 16, 32
ROUNDS, STEPS = 40, 2
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "SGD, momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return milliseconds of CPU time a step, `rounds` (default 40) turns of two steps each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _contest(name, make, rounds or ROUNDS) for name, make in OPTIMIZERS.items()}
    finally:
        torch.set_num_threads(before)


def _contest(name: str, make: Callable[..., torch.optim.Optimizer], rounds: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(1)
    x, y = (torch.randn(ROWS, WIDTH, generator=made) for _ in range(2))
    criterion = nn.MSELoss()
    plain, placed = _net(), _net()
    optimizer = make(plain.parameters())
    step = train_step(placed, criterion, make(placed.parameters()), ["cpu"])

    def loop() -> None:
        criterion(plain(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    contestants = {f"plain loop, {name}": loop, f"autopar.train_step, {name}": lambda: step(x, y)}
    samples = interleaved(contestants, rounds, time.process_time, STEPS)
    same = all(map(torch.equal, plain.parameters(), placed.parameters()))
    found = report(samples, base=f"plain loop, {name}", unit="ms/step")
    print(f"weights after it {'are the same bits' if same else 'differ'}")
    return {**found, "same": same}


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = ((nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*(module for layer in layers for module in layer))
