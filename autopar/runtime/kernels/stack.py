"""`Stack`: a library that compiles the work of many tasks; `Kernel`: what it made of one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx

from ...ir.graph import Graph, Task


class Refusal(Exception):
    """A library cannot compile a piece, or its kernel is wrong; the text is one sentence that says why."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` is called with those of the piece's reads whose positions are in `takes`,
    and gives its writes in turn."""

    stack: str
    call: Callable[..., Sequence[torch.Tensor]]
    takes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be compiled: a module of ATen calls, for inputs like `examples`, with `threads`, as one of `lanes`
    that run at the same time. `folder` is where what was compiled lies."""

    module: fx.GraphModule
    examples: Sequence[torch.Tensor]
    threads: int
    lanes: int
    folder: Path


class Stack(Protocol):
    """A library that compiles. `frozen` ones copy the weights into the kernel, and lay them out for the machine.

    It compiles in a process of its own, since what traces a model changes modules and flags that all threads of a
    process share; what it leaves in the folder is loaded where it is called.
    """

    name: str
    frozen: bool

    def missing(self) -> str:
        """Say in one sentence why it cannot be used here, or ""."""

    def keeps(self, task: Task, graph: Graph, /) -> bool:
        """True if a task can be part of a piece."""

    def compile(self, work: Work) -> None:
        """Compile, and leave it in the folder. Raises anything."""

    def load(self, work: Work) -> Callable[..., Any]:
        """The kernel, from the folder. Raises anything."""
