"""Mean losses as sums ÷ N, and their gradients as those of a sum."""

from __future__ import annotations

import dataclasses
import math

from ...ir.graph import SUMMED, Argument, Cut, Ref
from .builder import HALF, Steps, broadcast, typed, wide

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
    """Replace a mean loss by the summed loss ÷ the number of elements; a sum gets its cuts."""
    order = LOSSES[steps.task.target.split(".")[1]]
    reduction = steps.given(order, reduction=_MEAN)["reduction"]
    (made,) = steps.task.outputs
    shape = broadcast([steps.shape(name) for name in steps.task.inputs])
    if reduction == _NONE or 0 in shape:
        return False
    if reduction == _SUM:
        return _same(steps, steps.rows(steps.task.inputs, shape, SUMMED))
    dtype = steps.dtype(made)
    if dtype in HALF:
        elements = _reduced(steps, order, _NONE, "elements", shape, dtype)
        total = steps.total(elements, range(len(shape)), "sum")
    else:
        total = _reduced(steps, order, _SUM, "sum", (), dtype)
    steps.kept("", "aten.div.Scalar", (Ref(total), math.prod(shape)), steps.dtype(total), made)
    return True


def _reduced(steps: Steps, order: str, reduction: int, step: str, shape: tuple[int, ...], dtype: str) -> str:
    """Append the loss under another reduction, the elements or their sum; return its name."""
    inputs = steps.task.inputs
    whole = broadcast([steps.shape(name) for name in inputs])
    args, kwargs = _with(steps, order, reduction)
    cuts = steps.rows(inputs, whole, None if reduction == _NONE else SUMMED)
    return steps.put(step, steps.task.target, args, shape, dtype, kwargs=kwargs, cuts=cuts)


def backward(steps: Steps) -> bool:
    """Replace the backward by that of the summed loss, for the gradient ÷ N, which is a number, so that rows are read
    once."""
    name = steps.task.target.split(".")[1].removesuffix("_backward")
    order = f"grad_output {LOSSES[name]}"
    given = steps.given(order, reduction=_MEAN)
    tensors = [value for value in steps.task.inputs if value != given["grad_output"]]
    shape = broadcast([steps.shape(value) for value in tensors])
    if given["reduction"] == _NONE or 0 in shape or len(tensors) + 1 != len(steps.task.inputs):
        return False
    (made,) = steps.task.outputs
    if given["reduction"] == _SUM:
        return _same(steps, steps.rows(steps.task.inputs, shape))
    args, kwargs = _with(steps, order, _SUM)
    dtype = steps.dtype(given["grad_output"])
    share = steps.pointwise("share", "aten.div.Scalar", (Ref(given["grad_output"]), math.prod(shape)), dtype)
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
    cuts = _class_cuts(steps, scores, target, (SUMMED, SUMMED))
    if given["reduction"] == _NONE or cuts is None:
        return False
    made, weight = steps.task.outputs
    shape, dtype = steps.shape(scores), steps.dtype(made)
    rows = (shape[0], *shape[2:])
    acc = wide(dtype)
    total = _weight(steps, given, acc, weight if steps.dtype(weight) == acc else "")
    if steps.dtype(weight) != acc:
        steps.cast(total, steps.dtype(weight), "weight", weight)
    each = dtype in HALF
    args, kwargs = _with(steps, _CLASSES, _NONE if each else _SUM)
    if each:
        cuts = _class_cuts(steps, scores, target, (None, SUMMED)) or []
    step = "elements" if each else "sum"
    last = given["reduction"] == _SUM and not each
    part = made if last else steps.named(step)
    unread = f"{steps.task.name}#unread"
    steps.value(part, rows if each else (), dtype)
    steps.value(unread, (), dtype)
    name = steps.task.name if last else part
    steps.append(name, steps.task.target, args, (part, unread), kwargs=kwargs, cuts=cuts, unpack=True)
    if last:
        return True
    loss = steps.total(part, range(len(rows)), "sum") if each else part
    if given["reduction"] == _SUM:
        steps.cast(loss, dtype, "", made)
    else:
        steps.kept("", "aten.div.Tensor", (Ref(loss), Ref(total)), steps.dtype(loss), made)
    return True


def nll_backward(steps: Steps) -> bool:
    """Split the backward by rows: the total weight is an argument."""
    given = steps.given(f"grad_output {_CLASSES} total_weight")
    scores, target = given["self"], given["target"]
    each = given["reduction"] == _NONE
    cuts = _class_cuts(steps, scores, target, (None,), given["grad_output"] if each else "", own=True)
    return cuts is not None and _same(steps, cuts)


def _class_cuts(
    steps: Steps,
    scores: str,
    target: str,
    outputs: tuple[int | None, ...],
    grad: str = "",
    *,
    own: bool = False,
) -> list[Cut] | None:
    """Return a cut along each axis except the classes; None if the classes are not on axis 1.

    None in `outputs` stands for the axis: as in the scores if `own`, else as in the targets.
    """
    shape, other = steps.shape(scores), steps.shape(target)
    if len(shape) < 2 or 0 in shape or other != (shape[0], *shape[2:]):
        return None
    cuts = []
    for axis, size in enumerate(shape):
        if axis == 1 or size < 2:
            continue
        flat = axis - (axis > 1)
        axes = {scores: axis, target: flat, grad: flat}
        made = tuple((axis if own else flat) if output is None else output for output in outputs)
        cuts.append(Cut(tuple(axes.get(name) for name in steps.task.inputs), made))
    return cuts


def _weight(steps: Steps, given: dict[str, str], dtype: str, make: str = "") -> str:
    """Append the weight of all targets except ignored ones, by number or by class weight; return its name."""
    target, weight, ignored = given["target"], given["weight"], int(given["ignore_index"])
    kwargs: dict[str, Argument] = {"dtype": typed(dtype)}
    if weight is None:
        args: tuple[Argument, ...] = (Ref(target), ignored)
        counted = steps.pointwise("counted", "aten.ne.Scalar", args, "bool", whole=True)
    else:
        out = steps.pointwise("ignored", "aten.eq.Scalar", (Ref(target), ignored), "bool", whole=True)
        args = (Ref(target), Ref(out), 0)
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


def _same(steps: Steps, cuts: list[Cut]) -> bool:
    """Keep the task, with cuts."""
    steps.tasks.append(dataclasses.replace(steps.task, cuts=tuple(dict.fromkeys(cuts))))
    return True
