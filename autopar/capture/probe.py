"""What only a run can tell: whether the model works without autopar, and which module was running when it
failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import CaptureError
from .functions import Call
from .refusals import Untraceable, fails_alone
from .states import tensors_of
from .untouched import Attributes


def probe(call: Call, name: str) -> None:
    """Run the call on copies of its tensors and put the model's back; CaptureError when the model itself
    fails.
    """
    copies = [
        tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.arguments.tensors
    ]
    # What the caller computed may be changed in place, which a leaf that requires grad may not.
    tensors = [
        copy if tensor.is_leaf else copy.clone() for copy, tensor in zip(copies, call.arguments.tensors)
    ]
    with unchanged(call):
        try:
            call(*tensors)
        except CaptureError:
            raise
        except Exception as error:
            raise fails_alone(name, error) from error


def refuse_counters(call: Call, name: str) -> None:
    """Untraceable when forward goes on changing a number it keeps as an attribute: a graph would repeat the
    first call for ever. To be called after a trace; runs the model where a number changed.
    """
    first = {path: item for path, item in call.returned.changed.items() if type(item) in (int, float)}
    if not first:
        return
    attributes = Attributes(call.model)
    try:
        for path, number in first.items():
            owner, _, key = path.rpartition(".")
            vars(call.model.get_submodule(owner))[key] = number
        probe(call, name)
    finally:
        attributes.put_back()
    for path, number in first.items():
        again = call.returned.changed.get(path, number)
        if again != number:
            raise Untraceable(
                f"{name} counts in self.{path} ({number}, then {again}), which a graph would not; keep the "
                "count in a buffer that is changed in place, or outside the model",
                path.rpartition(".")[0],
            )


@contextlib.contextmanager
def unchanged(call: Call) -> Iterator[None]:
    """Give every tensor of the model the values back that it has now."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors_of(call.model)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in saved:
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)


@contextlib.contextmanager
def follow(model: nn.Module) -> Iterator[list[str]]:
    """The paths of the modules that run, outermost first; after an exception, of those it was raised in."""
    paths = {id(module): path for path, module in reversed(list(model.named_modules()))}
    running: list[str] = []

    def enter(module: nn.Module, args: Any) -> None:
        if id(module) in paths:
            running.append(paths[id(module)])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if id(module) in paths:
            running.pop()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def culprits(error: Exception, running: list[str]) -> list[str]:
    """Paths of the modules that an error came from, innermost first, the root left out."""
    if isinstance(error, Untraceable):
        steps = error.module.split(".") if error.module else []
        return [".".join(steps[:end]) for end in range(len(steps), 0, -1)]
    return [path for path in reversed(running) if path]
