"""`Stack`: a library that compiles several tasks; `Kernel`: the compiled form of one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from ...ir.graph import Graph, Task


class Refusal(Exception):
    """A library cannot compile a piece, or its kernel is wrong; the text is one sentence with the reason."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` takes the piece's reads at the positions `takes`, and returns its
    outputs."""

    stack: str
    call: Callable[..., Sequence[torch.Tensor]]
    takes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Work:
    """A compilation: a module of ATen calls, for inputs like `examples`, with `threads`, as one of `lanes` in
    parallel. `folder` takes the result."""

    module: fx.GraphModule
    examples: Sequence[torch.Tensor]
    threads: int
    lanes: int
    folder: Path


class Stack(Protocol):
    """A library that compiles. `frozen` ones copy the weights into the kernel, in the layout best for the machine.

    It compiles in a separate process, since tracing changes modules and flags shared by all threads of a process; the
    result in the folder is loaded in the caller's process.
    """

    name: str
    frozen: bool

    def missing(self) -> str:
        """Return the reason why it cannot be used here as one sentence, or ""."""

    def keeps(self, task: Task, graph: Graph, /) -> bool:
        """Return True if a task can be part of a piece."""

    def compile(self, work: Work) -> None:
        """Compile into the folder. Raises any error."""

    def load(self, work: Work) -> Callable[..., Any]:
        """Load the kernel from the folder. Raises any error."""
