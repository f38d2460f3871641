"""What to tell the user when a call cannot be traced."""

from __future__ import annotations

import traceback

from ..errors import CaptureError
from .source_locations import foreign, short


class Untraceable(CaptureError):
    """No graph can hold this call; it can still run as written."""


_ADVICE = (
    (
        ("GuardOnDataDependent", "data-dependent", "Could not guard on", "unbacked"),
        "what runs depends on the values in a tensor",
        "use torch.where or torch.cond, or take the decision outside the model",
    ),
    (
        ("DynamicOutputShape", "dynamic shape operator"),
        "the size of a result depends on the values in a tensor",
        "use a mask of fixed size, or move the operator outside the model",
    ),
    (
        (".numpy()", "numpy()", "FakeTensor to numpy"),
        "it leaves torch for numpy",
        "write it with torch operators, or as a custom_op of torch with register_fake",
    ),
    (
        ("non-differentiable view input mutations",),
        "a tensor that shares its memory with another is changed in place",
        "give each its own memory with clone()",
    ),
    (
        ("needed for gradient computation has been modified by an inplace operation",),
        "a tensor that the backward needs is changed in place",
        "change a clone of it, or use the operator that is not in place",
    ),
    (
        ("UnsupportedOperator", "no fake impl", "register_fake", "Meta"),
        "an operator has no fake implementation",
        "give it one with register_fake of torch",
    ),
    (
        ("UnsupportedInputType", "Unsupported input type"),
        "an argument is of a type that torch cannot trace",
        "register it with torch.utils._pytree.register_pytree_node or pass tensors",
    ),
)


def explain(name: str, error: BaseException) -> str:
    """What construct, on which line of the user's, and what to change: one sentence each."""
    if isinstance(error, CaptureError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    what, change = known(text) or ("torch cannot trace it", "write it with torch operators on tensors")
    return f"{name}{place(error)}: {what} ({_first(error)}); {change}"


def known(text: str) -> tuple[str, str] | None:
    """Meaning of an error of torch's for the user, and what to change; None where nothing is known."""
    return next(
        ((what, change) for marks, what, change in _ADVICE if any(mark in text for mark in marks)), None
    )


def fails_alone(name: str, error: BaseException) -> CaptureError:
    """What to raise when the model itself, or a part of it with a name of its own, cannot take a call."""
    return CaptureError(
        f"{name} fails on these arguments without autopar too{place(error)}: {type(error).__name__}: {error}"
    )


def place(error: BaseException) -> str:
    """` at file:line: `code`` of the deepest frame outside torch and autopar, "" when there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if foreign(frame.filename):
            return f" at {short(frame.filename)}:{frame.lineno}" + (f": `{frame.line}`" if frame.line else "")
    return ""


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
