"""The last route: the whole call as one task, run as the user wrote it on the device it comes from."""

from __future__ import annotations

from typing import Any

import torch

from ..graph import Graph, Ref, Task, Value
from .captured import Captured
from .functions import Call

CALL = "autopar.call"
"""Target of the task that is the user's whole call."""


def opaque(call: Call, name: str, paths: tuple[str, ...]) -> Captured:
    """One task that makes one Python object, the user's own answer; effects and all are eager's."""
    (function,) = call.function
    arguments = call.arguments

    def run(*tensors: torch.Tensor) -> Any:
        args, kwargs = arguments.join(tensors)
        return function(*args, **kwargs)

    inputs = []
    for path, tensor in zip(paths, arguments.tensors):
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        inputs.append(Value(path, tuple(tensor.shape), dtype, size, path, "input", path))
    answer = Value("answer", (), "object", 0, "answer")
    task = Task(
        name="call",
        target=CALL,
        args=tuple(Ref(value.name) for value in inputs),
        outputs=(answer.name,),
        random="default",
        home=True,
        module=name,
    )
    graph = Graph(name, (*inputs, answer), (task,), tuple(value.name for value in inputs), (), (answer.name,))
    return Captured(
        graph.check(), {}, {CALL: run}, arguments.flatten, _answer, "opaque", call.home, call.grads(1)
    )


def _answer(values: list[Any]) -> Any:
    return values[0]
