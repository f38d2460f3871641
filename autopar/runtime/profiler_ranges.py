"""The names that profilers show for the steps of a recorded call: torch.profiler's and, where CUDA is, Nsight's."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..ir.graph import Graph
from ..ir.program import Compute, Copy, Step


def title(step: Step, graph: Graph) -> str:
    """How a profiler calls a step: `linear#0 · net.fc1` for a task and its module, `h@cpu to h@cuda:0` for a copy."""
    if isinstance(step, Compute):
        task = graph.task[step.task]
        return f"{task.name} · {task.module}" if task.module else task.name
    return f"{step.src} to {step.dst}" if isinstance(step, Copy) else ""


@functools.cache
def nvtx() -> Any:
    """Torch's NVTX ranges, None where torch was built without them or there is no CUDA device."""
    return torch.cuda.nvtx if torch.cuda.is_available() else None


class Ranges:
    """Ranges of the current thread, one after the other.

    torch.profiler looks at one thread unless told
    `experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`; Nsight sees all.
    """

    def __init__(self) -> None:
        self._open: Any = None
        self._nvtx = nvtx()

    def push(self, name: str) -> None:
        """A range begins."""
        if self._nvtx is not None:
            self._nvtx.range_push(name)
        self._open = torch.profiler.record_function(name)
        self._open.__enter__()

    def pop(self) -> None:
        """The range ends."""
        self._open.__exit__(None, None, None)
        if self._nvtx is not None:
            self._nvtx.range_pop()
