"""Errors for calls that Dynamo cannot take as one graph."""

from __future__ import annotations

import re
from traceback import FrameSummary

from torch import fx

from ..errors import CaptureError
from .dynamo_private import TorchDynamoException, depends_on_values
from .refusals import Untraceable, known
from .source_locations import Locations, foreign, short

_FAILS = (
    ("Observed exception", re.compile(r"raised exception (.+)")),
    ("making fake tensor call", re.compile(r"got (\w+\(.+\))")),
    ("failed to bind arguments", re.compile(r"func='(.+)")),
)
"""Dynamo's names for errors that are the user's own, and their place in its text."""


def no_graph(name: str, error: TorchDynamoException, instead: str) -> CaptureError:
    """The error for a call of `name` that Dynamo did not capture whole: the user's line, the reason, and what to type,
    of which `instead` is what does without one graph."""
    text = str(error)
    where = _place(error)
    for kind, own in _FAILS:
        if kind in text:
            found = own.search(text)
            what = str(error.__cause__ or "") if "bind" in kind else found.group(1) if found else ""
            return CaptureError(
                f"{name} fails on these arguments without autopar too{where}: {what or _first(text)}"
            )
    advice = known(text)
    what, change = advice or ("torch.compile cannot take it into one graph", "change that line")
    reason = _first(text) if advice else _reason(text)
    return CaptureError(f"{name}{where}: {what} ({reason}); {change}, or {instead}")


def valued(name: str, module: fx.GraphModule, error: Untraceable) -> CaptureError:
    """The error for a graph with a number, or a size, that depends on the values in a tensor: with the line that makes
    the first of these."""
    for node in module.graph.nodes:
        if node.op != "placeholder" and depends_on_values(node.meta.get("example_value")):
            _, where, code = Locations().find(node)
            return CaptureError(
                f"{name} at {where}: `{code}`: {error}; keep it a tensor, use a mask of fixed size, or take it out of "
                "the model"
            )
    return CaptureError(f"{name}: {error}")


def _place(error: TorchDynamoException) -> str:
    """` at file:line: `code`` of the innermost frame of the user's, "" where Dynamo does not say."""
    frames: list[FrameSummary] = [*(getattr(error, "real_stack", None) or ())]
    own = [frame for frame in frames if foreign(frame.filename)]
    if not own:
        return ""
    last = own[-1]
    return f" at {short(last.filename)}:{last.lineno}" + (f": `{last.line}`" if last.line else "")


def _reason(text: str) -> str:
    """Dynamo's own name for it, and its explanation."""
    explained = re.search(r"Explanation: (.+)", text)
    return f"{_first(text)}: {explained.group(1).strip()}" if explained else _first(text)


def _first(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip(".:")
