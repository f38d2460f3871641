"""`capture`: the routes from a model to a graph, tried in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .captured import Captured
from .export import export
from .functions import Call
from .signature import names, take_apart

_LOCK = threading.RLock()


def capture(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Captured:
    """Turn one call of a model, or of a function of tensors, into a graph; shapes are those of the arguments."""
    kwargs = kwargs or {}
    name = (
        type(function).__name__
        if isinstance(function, nn.Module)
        else getattr(function, "__name__", "function")
    )
    with _LOCK:
        arguments = take_apart(args, kwargs)
        call = Call(function, arguments)
        paths = names(function.forward if isinstance(function, nn.Module) else function, arguments)
        return export(call, name, paths)
