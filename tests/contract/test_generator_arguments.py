"""Generators that `forward` draws from: eager's numbers, and each generator is left in the state that eager leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar

Draw = Callable[[Tensor, torch.Generator | None], Tensor]
DRAWS: dict[str, Draw] = {
    "rand": lambda x, g: torch.rand(x.shape, generator=g),
    "randn": lambda x, g: torch.randn(x.shape, generator=g),
    "randint": lambda x, g: torch.randint(2, 9, x.shape, generator=g).float(),
    "randperm": lambda x, g: torch.randperm(4, generator=g).float(),
    "multinomial": lambda x, g: torch.multinomial(x.abs(), 4, replacement=True, generator=g).float(),
    "bernoulli": lambda x, g: torch.bernoulli(x.sigmoid(), generator=g),
    "normal": lambda x, g: torch.normal(x, 1.0, generator=g),
    "normal_": lambda x, g: torch.empty(4).normal_(generator=g),
}


class Noisy(nn.Module):
    def __init__(self, draw: Draw, own: torch.Generator | None = None) -> None:
        super().__init__()
        self.linear, self.draw, self.own = nn.Linear(4, 4), draw, own

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.linear(x) + self.draw(x, self.own if self.own is not None else generator)


def seeded(seed: int | None) -> torch.Generator | None:
    torch.manual_seed(7)
    return None if seed is None else torch.Generator().manual_seed(seed)


def state(generator: torch.Generator | None) -> list[Tensor]:
    return [torch.get_rng_state(), *([] if generator is None else [generator.get_state()])]


@pytest.mark.parametrize("draw", DRAWS)
def test_another_generator_or_none_in_each_call(draw: str) -> None:
    model, x = Noisy(DRAWS[draw]), torch.randn(4, 4)
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for seed in (1, None, 2, None, 1, None):
            generators = []
            outputs = []
            for called in (fast, model):
                generator = seeded(seed)
                outputs.append([called(x, generator), called(x, generator=generator)])
                generators.append(state(generator))
            torch.testing.assert_close(outputs[0], outputs[1])
            torch.testing.assert_close(generators[0], generators[1])
    fast.close()


@pytest.mark.parametrize(
    "options", [{"devices": ["cpu"]}, {"devices": ["cpu", "emulated:0"], "policy": "round_robin"}]
)
def test_a_generator_that_the_module_holds(options: dict[str, Any]) -> None:
    own = torch.Generator()
    model, x = Noisy(DRAWS["randn"], own), torch.randn(4, 4)
    fast = autopar.compile(model, **options)
    found = []
    with torch.no_grad():
        for called in (fast, model):
            own.manual_seed(3)
            found.append([*(called(x) for _ in range(4)), own.get_state()])
    torch.testing.assert_close(found[0], found[1])
    fast.close()
