"""`Stack`: a library that compiles the work of many tasks; `Kernel`: what it made of one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from ...ir.graph import Graph, Task


class Refusal(Exception):
    """A library cannot compile a piece, or its kernel is wrong; the text is one sentence that says why."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` is called with those of the piece's reads whose positions are in `takes`,
    and gives its writes in turn. `folded` are the states whose values it holds a copy of. `built_s` are the seconds
    of its compilation."""

    stack: str
    call: Callable[..., Sequence[torch.Tensor]]
    takes: tuple[int, ...]
    folded: tuple[str, ...] = ()
    built_s: float = 0.0


class Stack(Protocol):
    """A library that compiles. `frozen` ones copy the weights into the kernel, and lay them out for the machine."""

    name: str
    frozen: bool

    def missing(self) -> str:
        """Say in one sentence why it cannot be used here, or ""."""

    def keeps(self, task: Task, graph: Graph, /) -> bool:
        """True if a task can be part of a piece."""

    def build(
        self, module: fx.GraphModule, examples: Sequence[torch.Tensor], threads: int, lanes: int, /
    ) -> Callable[..., Any]:
        """Compile a module of ATen calls for inputs like `examples` and a number of threads, as one of `lanes` that
        run at the same time. Raises anything."""
