"""Seconds of the runtime itself: a call, and an op of a 400-op chain of tiny tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from autopar.api import compile

from .timing import report

OPS = 400
ROUNDS = 15


class Chain(nn.Module):
    """400 elementwise operations, each reading the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last of the chain."""
        for _ in range(OPS // 4):
            x = torch.tanh(torch.neg(torch.relu(torch.sigmoid(x))))
        return x


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per call and per op of each contestant, in `rounds` (default 15) blocks."""
    data: dict[str, Any] = {}
    for layers, grad in ((3, False), (60, False), (3, True)):
        data[f"call_{layers}{'_grad' * grad}"] = call(layers, grad, rounds)
        print()
    data["chain"] = chain("cpu", rounds)
    return data


def call(layers: int, grad: bool = False, rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per call of an MLP, 8 wide, batch 2, as inference or so that it can be
    differentiated. `torch.compile` compiles nothing: what it takes is its entry and its guards."""
    parts = [part for _ in range(layers) for part in (nn.Linear(8, 8), nn.ReLU())]
    model, x = nn.Sequential(*parts[:-1]).eval(), torch.randn(2, 8)
    guarded = torch.compile(model, backend="eager")
    fast = compile(model, ["cpu"], check="never")
    calls: dict[str, Callable[..., Any]] = {"eager": model, "torch.compile": guarded, "autopar": fast}
    with torch.set_grad_enabled(grad):
        contestants = {name: partial(called, x) for name, called in calls.items()}
        print(f"{layers} layers{', to be differentiated' * grad}")
        return report(contestants, rounds or ROUNDS, base="eager", scale=1e6, unit="µs/call")


def chain(device: str, rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per op of each contestant on one device."""
    model, x = Chain().eval(), torch.randn(8, device=device)
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        fast = compile(model, list(dict.fromkeys(["cpu", device])), policy=f"single {device}", split=None,
                       example_inputs=(x,), check="never")  # fmt: skip
        interpreter = torch.fx.Interpreter(traced)
        contestants = {
            "eager": partial(model, x),
            "GraphModule": partial(traced, x),
            "autopar": partial(fast, x),
            "fx.Interpreter": partial(interpreter.run, x),
        }
        return report(contestants, rounds or ROUNDS, base="eager", scale=1e6, unit="µs/op", per=OPS)
