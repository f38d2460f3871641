"""CUDA graphs: PyTorch's own kernels of a piece, recorded once and launched together, so that the host no longer limits
a lane of short operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir.graph import Graph, Task
from .stack import Compilation, Stack

WARM = 3
"""Calls before the recording: libraries allocate their workspaces in the first ones."""


def missing() -> str:
    """Return the reason why they cannot be used; "" if they can."""
    return "" if torch.cuda.is_available() else "torch.cuda is not available"


def keeps(task: Task, graph: Graph) -> bool:  # noqa: ARG001 - the interface of a stack
    """Return True: the recording of an operator that waits for the host fails, and the piece stays eager."""
    return True


def load(work: Compilation) -> Callable[..., Any]:
    """Record a piece; return the function that replays it. Raises CUDA's errors.

    The weights are read from where they are now. Arguments are copied into the memory of the recording and results out
    of it, since the next replay overwrites them.
    """
    static = [tensor.clone() for tensor in work.examples]
    graph, side, ready = torch.cuda.CUDAGraph(), torch.cuda.Stream(work.device), torch.cuda.Event()
    with torch.no_grad(), torch.cuda.device(work.device):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                work.module(*static)
        torch.cuda.current_stream().wait_stream(side)
        # Other threads of the process may use the device meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            made = work.module(*static)
        ready.record()

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        stream = torch.cuda.current_stream(work.device)
        # The previous call may have been on another stream.
        stream.wait_event(ready)
        with torch.no_grad():
            for own, given in zip(static, tensors):
                own.copy_(given, non_blocking=True)
            graph.replay()
            results = [tensor.clone() for tensor in made]
        ready.record(stream)
        return results

    return call


STACK = Stack("cudagraphs", True, missing, keeps, load, devices=frozenset({"cuda"}))
"""A recording of PyTorch's own kernels, with the weights at their present addresses."""
