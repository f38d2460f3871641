"""`capture`: the routes from a model to a graph, tried in order."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .captured import Captured
from .export import export
from .functions import Call
from .opaque import opaque
from .probe import probe
from .refusals import Untraceable, explain
from .states import slots
from .signature import names, refuse_hidden, take_apart
from .untouched import Attributes, untouched

_LOCK = threading.RLock()
_LOG = logging.getLogger("autopar")


def capture(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Captured:
    """Turn one call of a model, or of a function of tensors, into a graph.

    Shapes are those of the arguments; tensors keep their identity, the model, its buffers and every random generator
    their state. Grad mode and autocast are the caller's. One capture runs at a time. Routes: `torch.export`, a
    symbolic trace, the whole call as one opaque task. Raises CaptureError with the construct, the user's line and
    what to change.
    """
    kwargs = kwargs or {}
    module = isinstance(function, nn.Module)
    name = type(function).__name__ if module else getattr(function, "__name__", type(function).__name__)
    notes: list[str] = []
    grad = torch.is_grad_enabled()
    with _LOCK, untouched(notes), torch.inference_mode(False), torch.set_grad_enabled(grad):
        arguments = take_apart(args, kwargs)
        for constant in arguments.constants:
            refuse_hidden(constant, "an argument")
        call = Call(function, arguments)
        for slot in slots(call.model):
            if slot.tensor.is_inference():
                raise CaptureError(
                    f"{slot.path} was made inside torch.inference_mode, which nothing can trace; build the model outside it"
                )
        paths = names(function.forward if module else function, arguments)
        attributes = Attributes(call.model)
        try:
            captured = _first(call, name, paths, notes)
        finally:
            attributes.put_back()
    return dataclasses.replace(captured, notes=tuple(dict.fromkeys((*captured.notes, *notes))))


def _first(call: Call, name: str, paths: tuple[str, ...], notes: list[str]) -> Captured:
    """The first route that takes the call."""
    try:
        return export(call, name, paths)
    except Exception as error:
        if isinstance(error, CaptureError) and not isinstance(error, Untraceable):
            raise
        probe(call, name)
        notes.append(f"runs as one task, not traced: {explain(name, error)}")
        _LOG.warning("%s", notes[-1])
        return opaque(call, name, paths)
