"""The tasks of a piece as an `fx.GraphModule` of ATen calls, as PyTorch's compilers accept; a composite is a function
of these."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from ...ir.graph import Argument, Const, Graph, Ref
from ...ir.program import Piece, Program
from ...ops import resolve
from ...ops.bodies import body


def module_of(
    piece: Piece, program: Program, graph: Graph, device: torch.device, state: Mapping[str, Any]
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """Return the module of a piece, and the positions in `piece.reads` of its arguments.

    The tensors of `state` are its attributes; all else that the piece reads is an argument. It returns a tuple of the
    piece's outputs.
    """
    root, made = nn.Module(), fx.Graph()
    nodes: dict[str, fx.Node] = {}
    takes = []
    for position, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name not in state:
            takes.append(position)
            nodes[name] = made.placeholder(f"arg{position}")
    for number, buffer in enumerate(piece.reads):
        name = program.buffer[buffer].value
        if name in state:
            root.register_buffer(f"state{number}", state[name].detach())
            nodes[name] = made.get_attr(f"state{number}")

    def argument(item: Argument) -> Any:
        if isinstance(item, Ref):
            return nodes[item.value]
        if isinstance(item, Const):
            return resolve.constant(item.text, device)
        return [argument(part) for part in item] if isinstance(item, tuple) else item

    for name in piece.tasks:
        task = graph.task[name]
        call = made.call_function(
            body(task) or resolve.target(task.target),
            tuple(map(argument, task.args)),
            {key: argument(item) for key, item in task.kwargs},
        )
        for index, value in enumerate(task.outputs):
            nodes[value] = made.call_function(operator.getitem, (call, index)) if task.unpack else call
    made.output(tuple(nodes[program.buffer[name].value] for name in piece.writes))
    module = fx.GraphModule(root, made, "Piece")
    module.graph.lint()
    return module.eval(), tuple(takes)
