"""Chains of short operators side by side, on one stream of a GPU and on two, launched one by one or recorded in a CUDA
graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from autopar.engine.api import compile
from autopar.engine.compiled import Compiled
from autopar.errors import AutoparError

from .racing import Call, race
from .setting import machine, sizes

ROWS, CALLS = 32, 10
WARM = 3
"""Calls before a recording: libraries choose their algorithms in the first ones."""
WAIT_S = 60.0
"""Limit on the compilation of kernels."""


class Towers(nn.Module):
    """Chains of linear layers and norms over one input, and the sum of their results."""

    def __init__(self, towers: int, layers: int, width: int) -> None:
        super().__init__()
        chains = ([Layer(width) for _ in range(layers)] for _ in range(towers))
        self.towers = nn.ModuleList(nn.Sequential(*chain) for chain in chains)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum, of the shape of `x`."""
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


class Layer(nn.Module):
    """Three short kernels and a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the activated product to `x`."""
        return x + torch.relu(self.norm(self.linear(x)))


@torch.no_grad()
def branches(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Race a model of parallel chains: eager, `torch.compile` and autopar on two streams, each also in a CUDA graph."""
    chosen = sizes(gpu)
    torch.manual_seed(0)
    model = Towers(chosen.towers, chosen.layers, chosen.narrow).eval().to(gpu)
    x = torch.randn(ROWS, chosen.narrow).to(gpu)
    with ExitStack() as stack:

        def placed(**options: Any) -> Compiled:
            two = machine(gpu, lanes=2)
            fast = compile(model, two, policy="heft", split=None, outputs="as_placed", **options)
            stack.callback(fast.close)
            fast(x)
            lanes = {task.lane for task in fast.plan.placed}
            if len(lanes) < 2:
                raise AutoparError(f"the plan uses {', '.join(lanes)} alone")
            return fast

        def in_pieces() -> Call:
            _require_graphs(gpu)
            fast = placed(kernels="cudagraphs")
            fast.wait(WAIT_S)
            if "cudagraphs" not in fast.serving:
                raise AutoparError(f"its calls are served by {fast.serving}")
            return lambda: fast(x)

        def compiled() -> Call:
            fast = torch.compile(model)
            return lambda: fast(x)

        def two_streams() -> Call:
            fast = placed()
            return lambda: fast(x)

        makers: dict[str, Callable[[], Call]] = {
            "eager": lambda: lambda: model(x),
            "torch.compile": compiled,
            "autopar, two streams": two_streams,
            "CUDA graph of eager": lambda: recorded(model, x),
            "CUDA graph of torch.compile": lambda: recorded(torch.compile(model), x),
            "CUDA graph of autopar, two streams": lambda: recorded(placed(), x),
            'autopar, two streams, kernels="cudagraphs"': in_pieces,
        }
        return race(makers, [model(x)], gpu, rounds or 15, base="eager", calls=CALLS)


def recorded(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Call:
    """Record a call of a model in a CUDA graph; return the function that copies `x` to it and replays it.

    Streams that the call makes wait for the recorded one, and that it waits for, are part of the graph.
    """
    _require_graphs(str(x.device))
    given, graph, side = x.clone(), torch.cuda.CUDAGraph(), torch.cuda.Stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        for _ in range(WARM):
            model(given)
    torch.cuda.current_stream(x.device).wait_stream(side)
    # Other threads feed the other streams, and may allocate.
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        made = model(given)

    def call() -> torch.Tensor:
        given.copy_(x)
        graph.replay()
        return made

    return call


def _require_graphs(device: str) -> None:
    if torch.device(device).type != "cuda":
        raise AutoparError(f"CUDA alone has graphs, and {device} is none")
