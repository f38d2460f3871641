"""Means and variances over the batch by sums; BatchNorm in training by such sums, or by each part's
statistics.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
Shift", 2015. `torch.nn.SyncBatchNorm` exchanges the same sums between processes; here, they are tasks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...ir.graph import OWN, SUMMED, Argument, Cut, Graph, Ref, Task, Value
from .builder import Steps, axes_of, holds_batch, wide

_STATS = "input weight bias running_mean running_var training momentum eps"
_NO_STATS = "input weight bias training momentum eps"
_BACKWARD = "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask"


def mean(steps: Steps) -> bool:
    """Replace `mean` over a possible batch axis by a sum ÷ the number of summed elements."""
    arguments = steps.arguments(
        "self dim keepdim" if ".dim" in steps.task.target else "self", dim=None, keepdim=False
    )
    (output,), name = steps.task.outputs, arguments["self"]
    shape = steps.shape(name)
    axes = axes_of(arguments["dim"], len(shape))
    if not holds_batch(shape, axes) or 0 in shape:
        return False
    dtype = wide(steps.dtype(output))
    total = steps.total(name, axes, "sum", keep=bool(arguments["keepdim"]), dtype=dtype)
    elements = math.prod(shape[axis] for axis in axes)
    steps.computed_in("", "aten.div.Scalar", (Ref(total), elements), dtype, output)
    return True


def variance(steps: Steps) -> bool:
    """Replace `var`, `std`, `var_mean` and `std_mean`: first the mean, then the sum of centred squares.

    This avoids cancellation (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
    """
    arguments = steps.arguments("self dim", dim=None, keepdim=False, correction=None)
    name, outputs = arguments["self"], steps.task.outputs
    shape, dtype = steps.shape(name), steps.dtype(name)
    axes = axes_of(arguments["dim"], len(shape))
    if not holds_batch(shape, axes) or 0 in shape or dtype.startswith("complex"):
        return False
    correction = 1 if arguments["correction"] is None else arguments["correction"]
    elements = math.prod(shape[axis] for axis in axes)
    keep = bool(arguments["keepdim"])
    total = steps.total(name, axes, "sum", keep=True)
    acc = steps.dtype(total)
    middle = steps.pointwise("mean", "aten.div.Scalar", (Ref(total), elements), acc)
    squares = steps.total(_centred_squares(steps, name, middle, acc), axes, "squares", keep=keep)
    left = max(0, elements - correction)
    spread = steps.pointwise("spread", "aten.div.Scalar", (Ref(squares), left), acc)
    if steps.task.target.startswith("aten.std"):
        spread = steps.pointwise("root", "aten.sqrt.default", (Ref(spread),), acc)
    if len(outputs) > 1:
        flat = steps.shape(outputs[1])
        args = (Ref(middle), flat)
        middle = steps.put("flat", "aten.reshape.default", args, flat, acc, view=middle)
        steps.cast(middle, dtype, "middle", outputs[1])
    steps.cast(spread, dtype, "", outputs[0])
    return True


def _centred_squares(steps: Steps, name: str, middle: str, dtype: str) -> str:
    """Append (value − mean)², with the mean broadcast; return its name."""
    centred = steps.pointwise("centred", "aten.sub.Tensor", (Ref(name), Ref(middle)), dtype)
    return steps.pointwise("square", "aten.mul.Tensor", (Ref(centred), Ref(centred)), dtype)


def batch_norm(steps: Steps) -> bool:
    """Replace BatchNorm: sum for the mean, then sum centred squares (no cancellation), and normalise rows as
    in evaluation.

    Statistics of float16 and bfloat16 are in float32.
    """
    arguments = _forward(steps)
    rows = arguments["input"]
    shape = steps.shape(rows)
    # An InstanceNorm is a BatchNorm of one row with the rows as channels: it mixes no rows.
    if not arguments["training"] or len(shape) < 2 or 0 in shape or shape[0] == 1:
        return False
    output, save_mean, save_invstd, *running = steps.task.outputs
    acc, axes = wide(steps.dtype(rows)), _others(shape)
    elements = math.prod(shape) // shape[1]
    total = steps.total(rows, axes, "sum", dtype=acc)
    mean = steps.pointwise("mean", "aten.div.Scalar", (Ref(total), elements), acc, make=save_mean)
    squares = steps.total(_centred_squares(steps, rows, _column(steps, mean, shape), acc), axes, "squares")
    var = steps.pointwise("var", "aten.div.Scalar", (Ref(squares), elements), acc)
    safe = steps.pointwise("safe", "aten.add.Scalar", (Ref(var), arguments["eps"]), acc)
    steps.pointwise("invstd", "aten.rsqrt.default", (Ref(safe),), acc, make=save_invstd)
    if running:
        unbiased = steps.pointwise("unbiased", "aten.div.Scalar", (Ref(squares), elements - 1), acc)
        for kind, new, out in zip(("mean", "var"), (mean, unbiased), running):
            name = arguments[f"running_{kind}"]
            old, step = steps.cast(name, acc, f"old_{kind}"), f"running_{kind}"
            pair = (Ref(old), Ref(new), arguments["momentum"])
            steps.computed_in(step, "aten.lerp.Scalar", pair, acc, out, like=name)
    weight, bias = (_ref(_wider(steps, arguments[key], acc, key)) for key in ("weight", "bias"))
    args = (
        Ref(rows),
        weight,
        bias,
        Ref(mean),
        Ref(var),
        False,
        arguments["momentum"],
        arguments["eps"],
        False,
    )
    cuts = _cuts(steps, args, {rows}, shape, (None,))
    steps.put("", "aten.batch_norm.default", args, shape, steps.dtype(output), cuts=cuts, make=output)
    return True


def batch_norm_backward(steps: Steps) -> bool:
    """Replace the backward of BatchNorm: sum the gradients of weight and bias; the input's follows row by
    row.

    dx = w σ⁻¹ (dy − Σdy/N − (x − μ) σ⁻¹ Σ(dy x̂)/N).
    """
    arguments = steps.arguments(_BACKWARD)
    name, grad, mask = arguments["input"], arguments["grad_out"], arguments["output_mask"]
    shape = steps.shape(name)
    if not arguments["train"] or len(shape) < 2 or 0 in shape or shape[0] == 1:
        return False
    acc, elements = wide(steps.dtype(name)), math.prod(shape) // shape[1]
    weight = _wider(steps, arguments["weight"], acc, "weight")
    mean, invstd = (steps.cast(arguments[key], acc, f"{key}_wide") for key in ("save_mean", "save_invstd"))
    sums = []
    for key, on, out in zip(("dweight", "dbias"), mask[1:], steps.task.outputs[1:]):
        direct = on and steps.dtype(out) == acc
        sums.append(out if direct else f"{steps.task.name}#{key}")
        steps.value(sums[-1], (shape[1],), acc, label="" if direct else key)
    dweight, dbias = sums
    none = f"{steps.task.name}#none"
    steps.values[none] = Value(none, (), "object", 0, none, label="none")
    stats = (None, None, Ref(mean), Ref(invstd), True, arguments["eps"], (False, True, True))
    args = (Ref(grad), Ref(name), _ref(weight), *stats)
    cuts = _cuts(steps, args, {name, grad}, shape, (OWN, SUMMED, SUMMED))
    last = "sums" if mask[0] else ""
    steps.append(steps.named(last), steps.task.target, args, (none, dweight, dbias), cuts=cuts, unpack=True)
    for key, on, new, out in zip(("weight", "bias"), mask[1:], sums, steps.task.outputs[1:]):
        if on and new != out:
            steps.cast(new, steps.dtype(out), f"{key}_out", out)
    if not mask[0]:
        return True
    scale = invstd
    if weight is not None:
        scale = steps.pointwise("scale", "aten.mul.Tensor", (Ref(invstd), Ref(weight)), acc)
    turned = steps.pointwise("turned", "aten.mul.Tensor", (Ref(scale), Ref(invstd)), acc)
    factors = []
    for key, one, other in (("shift", scale, dbias), ("slope", turned, dweight)):
        product = steps.pointwise(f"{key}_sum", "aten.mul.Tensor", (Ref(one), Ref(other)), acc)
        share = steps.pointwise(key, "aten.div.Scalar", (Ref(product), -elements), acc)
        factors.append(Ref(_column(steps, share, shape)))
    shift, slope = factors
    middle, steep = (Ref(_column(steps, value, shape)) for value in (mean, scale))
    centred = steps.pointwise("centred", "aten.sub.Tensor", (Ref(name), middle), acc)
    moved = steps.pointwise("moved", "aten.addcmul.default", (shift, Ref(centred), slope), acc)
    steps.computed_in("", "aten.addcmul.default", (Ref(moved), Ref(grad), steep), acc, steps.task.outputs[0])
    return True


def per_part(steps: Steps) -> bool:
    """Keep the task, with each part's own statistics; the first part's update the running statistics."""
    task = steps.task
    if task.target.startswith("aten.native_batch_norm_backward"):
        arguments = steps.arguments(_BACKWARD)
        training = arguments["train"]
        axes = {
            arguments["grad_out"]: 0,
            arguments["input"]: 0,
            arguments["save_mean"]: OWN,
            arguments["save_invstd"]: OWN,
        }
        outputs = tuple(out if on else OWN for on, out in zip(arguments["output_mask"], (0, SUMMED, SUMMED)))
    else:
        arguments = _forward(steps)
        training = arguments["training"]
        axes, outputs = {arguments["input"]: 0}, (0, *(OWN for _ in task.outputs[1:]))
    if not training or steps.shape(arguments["input"])[0] < 2:
        return False
    cut = Cut(tuple(axes.get(name) for name in task.inputs), outputs)
    steps.tasks.append(dataclasses.replace(task, cuts=(cut,)))
    return True


def single_valued(graph: Graph) -> Task | None:
    """Return the first part of a BatchNorm in training that has one value per channel, and so no variance."""
    values = dict(graph.value)
    for task in graph.tasks:
        if task.part and "native_batch_norm" in task.target and "backward" not in task.target:
            steps = Steps(graph, task, values)
            arguments = _forward(steps)
            shape = steps.shape(arguments["input"])
            # The form for evaluation has a number in this position.
            if arguments.get("training") is True and math.prod(shape) == shape[1]:
                return task
    return None


def _forward(steps: Steps) -> dict[str, Any]:
    return steps.arguments(_NO_STATS if steps.task.target.endswith(".no_stats") else _STATS)


def _others(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return all axes except the channels."""
    return tuple(axis for axis in range(len(shape)) if axis != 1)


def _cuts(
    steps: Steps,
    args: tuple[Argument, ...],
    rows: set[str],
    shape: tuple[int, ...],
    outputs: tuple[int | None, ...],
) -> tuple[Cut, ...]:
    """Return a cut of `rows` along each axis except the channels; None in `outputs` stands for the axis."""
    inputs = dataclasses.replace(steps.task, args=args, kwargs=()).inputs
    return tuple(
        Cut(
            tuple(axis if name in rows else None for name in inputs),
            tuple(axis if output is None else output for output in outputs),
        )
        for axis in _others(shape)
        if shape[axis] > 1
    )


def _column(steps: Steps, name: str, shape: tuple[int, ...]) -> str:
    """Append a reshape by which one number per channel broadcasts to the input; return its name."""
    column = (1, shape[1], *(1 for _ in shape[2:]))
    step = f"{name.removeprefix(f'{steps.task.name}#')}_column"
    return steps.put(step, "aten.reshape.default", (Ref(name), column), column, steps.dtype(name), view=name)


def _wider(steps: Steps, name: str | None, dtype: str, step: str) -> str | None:
    return None if name is None else steps.cast(name, dtype, f"{step}_wide")


def _ref(name: str | None) -> Ref | None:
    return None if name is None else Ref(name)
