"""`torch.compile(model, backend="autopar", options={"devices": ["cpu", "cuda:0"]})`."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from .api import compile, prepared
from .capture.dynamo_private import guard_methods
from .errors import PlanError
from .session.model_session import ModelSession

_OWN = ("model", "example_inputs", "example_kwargs", "fullgraph", "dynamic")
"""Keywords of `compile` that `torch.compile` receives itself or does not need."""

_backends: list[tuple[dict[str, Any], weakref.ref[ModelSession]]] = []
_lock = threading.Lock()


def autopar(
    module: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph as backend of `torch.compile`; options are keywords of `autopar.compile` (default: all devices).

    Graphs with equal options share one `Session`, and its replicas of weights, while any of them lives. Raises
    PlanError or DeviceError for invalid options.
    """
    if mode is not None:
        raise PlanError(f'backend="autopar" has no mode={mode!r}; give options={{"policy": …, "split": …}}')
    made = backend(options or {})
    guard_methods()
    call = made(module, examples)
    # The call alone keeps the backend alive.
    vars(call)["backend"] = made
    return call


def backend(options: Mapping[str, Any]) -> ModelSession:
    """Return the existing backend for these options, or a new one."""
    known = [name for name in inspect.signature(compile).parameters if name not in _OWN]
    for name in options:
        if name not in known:
            raise PlanError(f'backend="autopar" has no option {name!r}; it has {", ".join(known)}')
    with _lock:
        _backends[:] = [(given, there) for given, there in _backends if there() is not None]
        for given, there in _backends:
            found = there()
            if found is not None and given == options:
                return found
        machine, checked, plan = prepared(None, **options)
        made = ModelSession(machine, checked, user_plan=plan)
        _backends.append((dict(options), weakref.ref(made)))
        return made
