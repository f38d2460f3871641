"""Means and variances over the batch as sums."""

from __future__ import annotations

import math

from ...ir.graph import Ref
from .builder import Steps, axes_of, holds_batch, wide


def mean(steps: Steps) -> bool:
    """`mean` over an axis the batch may lie on: the sum ÷ the number of elements summed."""
    given = steps.given(
        "self dim keepdim" if ".dim" in steps.task.target else "self", dim=None, keepdim=False
    )
    (made,), name = steps.task.outputs, given["self"]
    shape = steps.shape(name)
    axes = axes_of(given["dim"], len(shape))
    if not holds_batch(shape, axes) or 0 in shape:
        return False
    dtype = wide(steps.dtype(made))
    total = steps.total(name, axes, "sum", keep=bool(given["keepdim"]), dtype=dtype)
    steps.divided(total, math.prod(shape[axis] for axis in axes), "", made)
    return True


def variance(steps: Steps) -> bool:
    """`var`, `std` and their pairs with the mean: the mean first, then the sum of centred squares, which loses
    nothing to cancellation (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
    """
    kind = steps.task.target.removeprefix("aten.").partition(".")[0]
    given = steps.given("self dim", dim=None, keepdim=False, correction=None)
    name, outputs = given["self"], steps.task.outputs
    shape, dtype = steps.shape(name), steps.dtype(name)
    axes = axes_of(given["dim"], len(shape))
    if not holds_batch(shape, axes) or 0 in shape or dtype.startswith("complex"):
        return False
    correction = 1 if given["correction"] is None else given["correction"]
    count = math.prod(shape[axis] for axis in axes)
    keep = bool(given["keepdim"])
    total = steps.total(name, axes, "sum", keep=True)
    acc = steps.dtype(total)
    middle = steps.pointwise("mean", "aten.div.Scalar", (Ref(total), count), acc)
    squares = steps.total(centred_squares(steps, name, middle, acc), axes, "squares", keep=keep)
    left = max(0, count - correction)
    spread = steps.pointwise("spread", "aten.div.Scalar", (Ref(squares), left), acc)
    if kind.startswith("std"):
        spread = steps.pointwise("root", "aten.sqrt.default", (Ref(spread),), acc)
    if len(outputs) > 1:
        flat = steps.shape(outputs[1])
        args = (Ref(middle), flat)
        middle = steps.put("flat", "aten.reshape.default", args, flat, acc, view=middle)
        steps.cast(middle, dtype, "middle", outputs[1])
    steps.cast(spread, dtype, "", outputs[0])
    return True


def centred_squares(steps: Steps, name: str, middle: str, dtype: str) -> str:
    """(value − mean)², the mean broadcast onto it."""
    centred = steps.pointwise("centred", "aten.sub.Tensor", (Ref(name), Ref(middle)), dtype)
    return steps.pointwise("square", "aten.mul.Tensor", (Ref(centred), Ref(centred)), dtype)
