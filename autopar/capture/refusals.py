"""Errors, with advice, for calls that cannot be traced or are not one graph."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import FrameSummary
from typing import Any

import sympy
import torch
from torch import fx

from ..errors import CaptureError
from ..system.text import brief
from .dynamo_private import FloatTrueDiv, FloorToInt, TorchDynamoException, depends_on_values, of_floats
from .operators import collective
from .source_locations import at_line, first_line, foreign, line, short
from .symbols import OPEN
from .torch_private import decisions


class Untraceable(CaptureError):
    """A call that no graph can hold; it can still run as written."""


_ADVICE = (
    (
        ("_ctc_loss",),
        "torch.compile cannot take ctc_loss, whose work depends on the lengths in a tensor",
        "compute it outside of what is captured",
    ),
    (
        ("FloatTrueDiv(1.0, ToFloat(…return F.batch_norm(",),
        "BatchNorm with momentum=None divides by the number of its batches, which is the value of a tensor",
        "give it a number, such as momentum=0.1",
    ),
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
        ("function `is_dependent`",),
        "torch.distributions checks its arguments, by values in tensors",
        "switch that off, as torch.compile does: validate_args=False, or for all distributions "
        "torch.distributions.Distribution.set_default_validate_args(False)",
    ),
    (
        ("Failed to convert args/kwargs to proxy…(Generator)",),
        "a graph cannot draw from a torch.Generator of yours",
        "leave generator= out, and seed torch's own generator by torch.manual_seed",
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
"""Marks in the text of an error (one suffices), the meaning of the error, and the change to make. A mark with
"…" stands for its parts, which must all be there."""


def explain(name: str, error: BaseException) -> str:
    """Return an explanation of a failed capture: the user's line, the construct, and the change to make."""
    if isinstance(error, CaptureError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    what, change = known(text) or ("torch cannot trace it", "write it with torch operators on tensors")
    return f"{name}{place(error)}: {what} ({brief(error)}); {change}"


_FAILED = "Error detected in "
"""The begin of torch's warning of a backward that fails in anomaly mode."""


@contextmanager
def unannounced() -> Iterator[None]:
    """Within the block, put the line whose backward fails into the error.

    AOTAutograd differentiates in anomaly mode, in which torch prints that line as a warning. In eager, the same call
    may never be differentiated.
    """
    lines: list[tuple[str, str]] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if _FAILED in str(message):
                lines.append(line(str(message)))
            else:
                show(message, *args, **kwargs)

        warnings.showwarning = shown
        warnings.filterwarnings("always", _FAILED)
        try:
            yield
        except Exception as error:
            if not lines or isinstance(error, CaptureError):
                raise
            what, change = known(str(error)) or ("torch cannot differentiate it", "change that line")
            (where, code), reason = lines[0], brief(error).partition(" Hint:")[0]
            raise Untraceable(f"{what} (`{code}` at {where}: {reason}); {change}") from error


def known(text: str) -> tuple[str, str] | None:
    """Return the meaning of an error of torch and the change to make; None if it is unknown."""

    def has(mark: str) -> bool:
        return all(part in text for part in mark.split("…"))

    return next(((what, change) for marks, what, change in _ADVICE if any(map(has, marks))), None)


def fails_alone(name: str, error: BaseException) -> CaptureError:
    """Return the error for a model, or a named part of it, that cannot take a call; also of the class of `error`."""
    return CaptureError.like(
        error,
        f"{name} itself raises on these arguments{place(error)}: {type(error).__name__}: {error}",
    )


def place(error: BaseException) -> str:
    """Return the user's innermost frame in an error's traceback."""
    return _at(traceback.extract_tb(error.__traceback__))


def _at(frames: Sequence[FrameSummary]) -> str:
    """Return ` at file:line: `code`` of the innermost frame outside torch and autopar; "" if there is none."""
    for frame in reversed(frames):
        if foreign(frame.filename):
            return f" at {short(frame.filename)}:{frame.lineno}" + (f": `{frame.line}`" if frame.line else "")
    return ""


# Calls that Dynamo cannot take as one graph
# -------------------------------------------------------------------------------------------------

_FAILS = (
    ("Observed exception", re.compile(r"raised exception (.+)")),
    ("making fake tensor call", re.compile(r"got (\w+\(.+\))")),
    ("failed to bind arguments", re.compile(r"func='(.+)")),
)
"""Dynamo's names for errors in the user's own code, and their place in its text."""


def no_graph(name: str, error: TorchDynamoException, instead: str) -> CaptureError:
    """Return the error for a call of `name` that was not captured as one graph: the user's line, the reason,
    and the change to make.

    `instead`: the alternative that does not need one graph.
    """
    text = str(error)
    where = _at([*(getattr(error, "real_stack", None) or ())])
    for kind, own in _FAILS:
        if kind in text and "register_fake" not in text:
            found = own.search(text)
            what = str(error.__cause__ or "") if "bind" in kind else found.group(1) if found else ""
            return CaptureError(
                f"{name} fails on these arguments{where}: {what or first_line(text)} (in torch.compile's trace of the "
                "call, which was not run)"
            )
    advice = known(text)
    what, change = advice or ("torch.compile cannot take it into one graph", "change that line")
    reason = first_line(text) if advice else _reason(text)
    return CaptureError(f"{name}{where}: {what} ({reason}); {change}, or {instead}")


def valued(name: str, module: fx.GraphModule, error: Untraceable) -> CaptureError:
    """Return the error for a graph in which a number or size depends on values in a tensor, with the line of
    the first one."""
    for node in module.graph.nodes:
        if node.op != "placeholder" and depends_on_values(node.meta.get("example_value")):
            return CaptureError(
                f"{name}{at_line(node)}: {error}; keep it a tensor, use a mask of fixed size, or take it out of the "
                "model"
            )
    return CaptureError(f"{name}: {error}")


def ordered(graph: fx.Graph) -> Untraceable | None:
    """Return the error for a graph that AOTAutograd has given tokens, which keep effects in order, with the line; None
    if it has none."""
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") == "with_effects":
            return Untraceable(
                f"{node.args[1]}{at_line(node)} has effects beside its results, which must happen in order; take it "
                "out of the model, or place the parts around it, autopar.compile(part, devices)"
            )
    return None


def assigned(graph: fx.Graph) -> Untraceable | None:
    """Return the error for a graph of Dynamo's that torch cannot trace if it has `tensor.data = …` of a tensor that is
    given, with the line; None if it has none."""
    # Since torch 2.14, an assignment is the second.
    targets = torch.Tensor.set_, getattr(torch.ops.aten, "shallow_copy_data_", None)
    for node in graph.nodes:
        if node.target in targets and getattr(node.args[0], "op", "") == "placeholder":
            return Untraceable(
                f"forward assigns .data{at_line(node)} of a parameter, buffer or input, which no graph can hold; use "
                "the new tensor in its place, as by torch.func.functional_call, or assign it before the call"
            )
    return None


_PLAIN = (vars(torch.Tensor)["__torch_function__"].__func__, torch.nn.Parameter.__torch_function__)
"""The functions by which classes of tensors compute what torch computes."""


def redefined(values: Iterable[Any]) -> str:
    """Return the reason why calls with one of these values run as written: its class is one of tensors, and redefines
    operators; "" if there is none."""
    for value in values:
        kind = type(value)
        if kind is not torch.Tensor and isinstance(value, torch.Tensor):
            function = kind.__torch_function__
            if getattr(function, "__func__", function) not in _PLAIN:
                return (
                    f"{kind.__name__}, the class of a tensor, redefines operators by __torch_function__; pass "
                    "x.as_subclass(torch.Tensor) if the model is to compute as with plain tensors"
                )
    return ""


def as_code(module: fx.GraphModule, examples: Sequence[Any]) -> CaptureError | None:
    """Return the error for a graph of Dynamo's, of a call with tensors like these, of which only the user's own code is
    right; None if the graph may serve."""
    why = redefined(examples)
    if not why and misjudged(module):
        return CaptureError(
            "what runs depends on a number that torch computes differently from Python, by `//` of a float or by other "
            "arithmetic with a float that varies; take the decision outside of the model, or by a tensor"
        )
    return Untraceable(why) if why else waiting(module) or reshaped(module)


_RESHAPES = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
"""Methods that change a tensor's own sizes or strides."""


def reshaped(module: fx.GraphModule) -> Untraceable | None:
    """Return the error for a graph in which a tensor's own shape is changed, with the line; None if there is none.

    Dynamo goes on with the sizes and strides from before the change.
    """
    for node in module.graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in _RESHAPES:
            return Untraceable(
                f"{name}{at_line(node)} changes the shape of a tensor in place, after which torch.compile reads its "
                f"old shape; use x = x.{name.rstrip('_')}(…)"
            )
    return None


def misjudged(module: fx.GraphModule) -> bool:
    """Return True if torch may have decided otherwise than Python when it captured a graph: it rounds the quotient of
    floats before it takes the whole part (for it, `1.0 // 0.2` is 5, and not 4), and computes in other orders."""
    values = (node.meta.get("example_value") for node in module.graph.nodes)
    numbers = [value.node.expr for value in values if isinstance(value, OPEN)]
    return any(of_floats(each) and each.has(FloorToInt) for each in numbers) or any(
        each.has(sympy.Function) if of_floats(each) else each.has(FloorToInt) and each.has(FloatTrueDiv)
        for each in decisions(module)
    )


def waiting(module: fx.GraphModule) -> Untraceable | None:
    """Return the error for a graph that waits for other processes, with the line; None if it does not."""
    node = collective(module)
    if node is None:
        return None
    return Untraceable(
        f"{node.target}{at_line(node)} waits for other processes, all of which must call their collectives in one "
        "order, and a plan of each has its own; place the parts around it, autopar.compile(part, devices)"
    )


def _reason(text: str) -> str:
    """Return Dynamo's name of the reason, and its explanation."""
    explained = re.search(r"Explanation: (.+)", text)
    return f"{first_line(text)}: {explained.group(1).strip()}" if explained else first_line(text)
