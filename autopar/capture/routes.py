"""`capture`: the routes from a model to a graph, tried in order."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .captured import Captured
from .export import export
from .functions import Call
from .opaque import opaque
from .probe import culprits, follow, probe, refuse_counters
from .refusals import Untraceable, explain
from .sharing import lent
from .signature import names, refuse_hidden, take_apart
from .states import slots
from .untouched import Attributes, untouched

_LOCK = threading.RLock()
_ATTEMPTS = 8
_LOG = logging.getLogger("autopar")


def capture(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Captured:
    """Turn one call of a model, or of a function of tensors, into a graph.

    Shapes are those of the arguments; tensors keep their identity, the model, its buffers and every random
    generator their state. Grad mode and autocast are the caller's. One capture runs at a time. Routes:
    `torch.export`, the same with the modules in its way kept whole, a symbolic trace, the whole call as one
    opaque task. Raises CaptureError with the construct, the user's line and what to change.
    """
    notes: list[str] = []
    with taken(function, args, kwargs or {}, notes) as (call, name, paths):
        captured = _first(call, name, paths, notes)
    return dataclasses.replace(captured, notes=tuple(dict.fromkeys((*captured.notes, *notes))))


@contextlib.contextmanager
def taken(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], notes: list[str]
) -> Iterator[tuple[Call, str, tuple[str, ...]]]:
    """One call ready to be traced, the name of its graph, the paths of its tensors; all is put back after."""
    module = isinstance(function, nn.Module)
    name = type(function).__name__ if module else getattr(function, "__name__", type(function).__name__)
    grad = torch.is_grad_enabled()
    with _LOCK, untouched(notes), torch.inference_mode(False), torch.set_grad_enabled(grad):
        arguments = take_apart(args, kwargs)
        for constant in arguments.constants:
            refuse_hidden(constant, "an argument")
        call = Call(function, arguments)
        for slot in slots(call.model):
            if slot.tensor.is_inference():
                raise CaptureError(
                    f"{slot.path} was made inside torch.inference_mode, which nothing can trace; "
                    "build the model outside it"
                )
        paths = names(function.forward if isinstance(function, nn.Module) else function, arguments)
        attributes = Attributes(call.model)
        try:
            yield call, name, paths
        finally:
            attributes.put_back()


def _first(call: Call, name: str, paths: tuple[str, ...], notes: list[str]) -> Captured:
    """The first route that takes the call."""
    reasons: list[str] = []
    with follow(call.model) as stack:
        try:
            captured = export(call, name, paths)
            refuse_counters(call, name)
            return captured
        except Exception as error:
            _final(error)
            reasons.append(explain(name, error))
            culprit = culprits(error, stack)
    probe(call, name)
    found = None
    if lent(call):
        # What an island changes of shared memory nobody would see.
        reasons[0] = (
            f"an argument shares its memory with another or with the model's own tensors ({reasons[0]})"
        )
    else:
        found = _with_islands(call, name, paths, culprit, reasons)
    captured = found or _recorded(call, name, paths, reasons)
    if found is None:
        notes.append(
            f"recorded by symbolic trace, changes in place stay on one device: {reasons[0]}"
            if captured.how == "symbolic trace"
            else f"runs as one task, not traced: {reasons[0]}"
        )
    else:
        kept = ", ".join(
            dict.fromkeys(task.module for task in captured.graph.tasks if task.target in captured.calls)
        )
        notes.append(f"{kept} run as written, not traced: {reasons[0]}")
    _LOG.warning("%s", notes[-1])
    return captured


def _with_islands(
    call: Call, name: str, paths: tuple[str, ...], culprit: list[str], reasons: list[str]
) -> Captured | None:
    """Export with the modules in the way kept whole, from the innermost outwards; None when only the root
    is left.
    """
    from .islands import Islands

    kept: list[str] = []
    for _ in range(_ATTEMPTS):
        if not culprit:
            return None
        kind = type(call.model.get_submodule(culprit[0]))
        kept += [path for path, module in call.model.named_modules() if type(module) is kind and path]
        kept = [
            path for path in dict.fromkeys(kept) if not any(path.startswith(f"{outer}.") for outer in kept)
        ]
        islands = Islands(call.model, tuple(kept))
        try:
            with islands.watched():
                probe(call, name)
        except Untraceable as error:
            reasons.append(str(error))
            kept, culprit = [path for path in kept if path != culprit[0]], culprit[1:]
            continue
        with follow(call.model) as stack:
            try:
                captured = export(call, name, paths, islands)
                refuse_counters(call, name)
                return captured
            except Exception as error:
                _final(error)
                reasons.append(explain(name, error))
                found = culprits(error, stack)
                culprit = [path for path in found if path not in kept]
    return None


def _recorded(call: Call, name: str, paths: tuple[str, ...], reasons: list[str]) -> Captured:
    """The symbolic trace, or the whole call as one task when that fails too."""
    from .symbolic import symbolic

    try:
        captured = symbolic(call, name, paths)
        refuse_counters(call, name)
        return captured
    except Exception as error:
        _final(error)
        reasons.append(explain(name, error))
        return opaque(call, name, paths)


def _final(error: Exception) -> None:
    """Raise again what no other route can help."""
    if isinstance(error, CaptureError) and not isinstance(error, Untraceable):
        raise error
