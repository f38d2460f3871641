"""`Library`: compiles the tasks of a piece together. `Kernel`: the compiled form of one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from ...ir.graph import Graph, Task
from ...ops.composites import body

Call: TypeAlias = Callable[..., Sequence[torch.Tensor]]
Examples: TypeAlias = Sequence[torch.Tensor]
Build: TypeAlias = Callable[[fx.GraphModule, Examples], Call]
"""The signature of a backend of `torch.compile`. `module.meta` describes the piece (`piece_module.module_of`)."""

_NUMPY = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class Refusal(Exception):
    """Error of a library that cannot compile a piece, or whose kernel is wrong; the text is the reason, one sentence.

    passing: the next call tries again.
    """

    def __init__(self, text: str, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


@dataclass(frozen=True, eq=False)
class Kernel:
    """The compiled form of a piece. `call` takes the piece's reads at the positions `takes`, and returns its
    outputs."""

    library: str
    call: Call
    takes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Library:
    """A library that compiles pieces.

    compiled: compiles a module of ATen calls for inputs like the examples, with torch's number of threads; None if
        `model` and `load` do: the library's own form of a piece, and the kernel from it, in this or another process.
    store: writes that form to files of this name, which `load` then takes instead: processes that load them share the
        pages of the weights that the library maps.
    missing: why it cannot be used here, as one sentence, or "".
    keeps: True if a task can be part of a piece.
    folds: it copies the weights, as attributes of the module, into the kernel, in the fastest layout.
    any_size: it can compile one kernel for calls of all sizes.
    devices: types of torch devices that it compiles for; None: all.
    """

    compiled: Build | None = None
    missing: Callable[[], str] = lambda: ""
    keeps: Callable[[Task, Graph], bool] = lambda task, graph: True
    folds: bool = False
    any_size: bool = False
    devices: frozenset[str] | None = frozenset({"cpu"})
    model: Callable[[fx.GraphModule, Examples], bytes] | None = None
    load: Callable[[bytes | str, fx.GraphModule, Examples], Call] | None = None
    store: Callable[[bytes, str], None] | None = None

    def build(self, module: fx.GraphModule, inputs: Examples) -> Call:
        """Compile a piece for inputs like the examples. Raises any error of the library."""
        if self.compiled is not None:
            return self.compiled(module, inputs)
        assert self.model is not None and self.load is not None
        return self.load(self.model(module, inputs), module, inputs)


def keeps_numpy(task: Task, graph: Graph) -> bool:
    """Return True for an ATen operator, or a composite of ATen operators, on NumPy's dtypes."""
    plain = task.target.startswith("aten.") or body(task) is not None
    return plain and all(graph.value[name].dtype in _NUMPY for name in (*task.inputs, *task.outputs))
