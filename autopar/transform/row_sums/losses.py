"""Mean losses as sums ÷ N, and their gradients as those of a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from numpy import broadcast_shapes

from ...ir.graph import SUMMED, Argument, Cut, Ref
from ...ir.open_size import count
from .builder import HALF, Steps, typed, wide

_NONE, _MEAN, _SUM = 0, 1, 2
"""torch's numbers for the reductions of a loss."""

LOSSES = {
    "mse_loss": "self target reduction",
    "smooth_l1_loss": "self target reduction beta",
    "huber_loss": "self target reduction delta",
    "soft_margin_loss": "self target reduction",
    "binary_cross_entropy": "self target weight reduction",
    "binary_cross_entropy_with_logits": "self target weight pos_weight reduction",
}
"""Positional arguments of losses with broadcast tensors that a trace with its backward does not decompose."""

_CLASSES = "self target weight reduction ignore_index"


def loss(steps: Steps) -> bool:
    """Replace a mean loss by the summed loss ÷ the number of elements."""
    order, inputs = LOSSES[steps.task.target.split(".")[1]], steps.task.inputs
    shape = broadcast_shapes(*map(steps.shape, inputs))
    if steps.given(order, reduction=_MEAN)["reduction"] != _MEAN or 0 in shape:
        return False
    (made,) = steps.task.outputs
    dtype = steps.dtype(made)
    each = dtype in HALF
    args, kwargs = _with(steps, order, _NONE if each else _SUM)
    cuts = steps.rows(inputs, shape, None if each else SUMMED)
    step, form = ("elements", shape) if each else ("sum", ())
    total = steps.put(step, steps.task.target, args, form, dtype, kwargs=kwargs, cuts=cuts)
    if each:
        total = steps.total(total, range(len(shape)), "sum")
    elements = _elements(steps, inputs, shape)
    steps.kept("", "aten.div.Scalar", (Ref(total), elements), steps.dtype(total), made)
    return True


def backward(steps: Steps) -> bool:
    """Replace the backward by that of the summed loss, for the gradient ÷ N, which is a number, so that rows are read
    once."""
    name = steps.task.target.split(".")[1].removesuffix("_backward")
    order = f"grad_output {LOSSES[name]}"
    given = steps.given(order, reduction=_MEAN)
    tensors = [value for value in steps.task.inputs if value != given["grad_output"]]
    shape = broadcast_shapes(*map(steps.shape, tensors))
    if given["reduction"] != _MEAN or 0 in shape or len(tensors) + 1 != len(steps.task.inputs):
        return False
    (made,) = steps.task.outputs
    args, kwargs = _with(steps, order, _SUM)
    dtype = steps.dtype(given["grad_output"])
    elements = _elements(steps, tensors, shape)
    share = steps.pointwise("share", "aten.div.Scalar", (Ref(given["grad_output"]), elements), dtype)
    names = (share, *tensors)
    steps.put(
        "", steps.task.target, (Ref(share), *args[1:]), steps.shape(made), steps.dtype(made),
        kwargs=kwargs, cuts=steps.rows(names, shape), make=made,
    )  # fmt: skip
    return True


def nll_forward(steps: Steps) -> bool:
    """Replace the NLL loss by the summed loss ÷ the total weight of the targets.

    The total weight is an output that depends only on the targets: the gradient needs it, and would otherwise wait for
    the loss of every part.
    """
    given = steps.given(_CLASSES)
    scores, target = given["self"], given["target"]
    shape, rows = steps.shape(scores), steps.shape(target)
    # The classes are on axis 1 of the scores.
    if given["reduction"] == _NONE or len(shape) < 2 or 0 in shape or rows != (shape[0], *shape[2:]):
        return False
    made, weight = steps.task.outputs
    dtype = steps.dtype(made)
    acc, each = wide(dtype), dtype in HALF
    total = _weight(steps, given, acc, weight if steps.dtype(weight) == acc else "")
    if steps.dtype(weight) != acc:
        steps.cast(total, steps.dtype(weight), "weight", weight)
    args, kwargs = _with(steps, _CLASSES, _NONE if each else _SUM)
    step = "elements" if each else "sum"
    last = given["reduction"] == _SUM and not each
    part = made if last else steps.named(step)
    unread = f"{steps.task.name}#unread"
    steps.value(part, rows if each else (), dtype)
    steps.value(unread, (), dtype)
    name = steps.task.name if last else part
    cuts = []
    for axis, size in enumerate(rows):
        axes = {scores: axis + (axis > 0), target: axis}
        if size > 1:
            summands = axis if each else SUMMED, SUMMED
            cuts.append(Cut(tuple(axes.get(read) for read in steps.task.inputs), summands))
    steps.append(name, steps.task.target, args, (part, unread), kwargs=kwargs, cuts=cuts, unpack=True)
    if last:
        return True
    loss = steps.total(part, range(len(rows)), "sum") if each else part
    if given["reduction"] == _SUM:
        steps.cast(loss, dtype, "", made)
    else:
        steps.kept("", "aten.div.Tensor", (Ref(loss), Ref(total)), steps.dtype(loss), made)
    return True


def _elements(steps: Steps, names: Sequence[str], shape: tuple[int, ...]) -> int:
    """Return the number of elements of what values of these names broadcast to, of shape `shape`, as an argument."""
    full = next((name for name in names if steps.shape(name) == shape), "")
    return count(steps.values[full]) if full else math.prod(shape)


def _weight(steps: Steps, given: dict[str, str], dtype: str, make: str = "") -> str:
    """Append the weight of all targets except ignored ones, by number or by class weight; return its name."""
    target, weight, ignored = given["target"], given["weight"], int(given["ignore_index"])
    kwargs: dict[str, Argument] = {"dtype": typed(dtype)}
    if weight is None:
        args: tuple[Argument, ...] = (Ref(target), ignored)
        counted = steps.pointwise("counted", "aten.ne.Scalar", args, "bool", whole=True)
    else:
        out = steps.pointwise("ignored", "aten.eq.Scalar", (Ref(target), ignored), "bool", whole=True)
        # An integer would pass for a number of elements (`results.form`).
        args = (Ref(target), Ref(out), 0.0)
        safe = steps.pointwise("safe", "aten.masked_fill.Scalar", args, steps.dtype(target), whole=True)
        shape, kind = steps.shape(target), steps.dtype(weight)
        each = steps.put("weights", "aten.take.default", (Ref(weight), Ref(safe)), shape, kind)
        args = (Ref(each), Ref(out), 0.0)
        counted = steps.pointwise("counted", "aten.masked_fill.Scalar", args, kind, whole=True)
    return steps.put("total", "aten.sum.default", (Ref(counted),), (), dtype, kwargs=kwargs, make=make)


def _with(steps: Steps, order: str, reduction: int) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """Return the arguments of the call with another reduction."""
    args, kwargs = steps.task.args, dict(steps.task.kwargs)
    place = order.split().index("reduction")
    if place < len(args):
        return (*args[:place], reduction, *args[place + 1 :]), kwargs
    return args, kwargs | {"reduction": reduction}
