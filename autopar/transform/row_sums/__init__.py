"""Rewrites of tasks that mix rows, by a rule for each operator: the new tasks treat rows independently or sum
them (`summed`). Here are the rules of draws and losses: a mean loss is a sum ÷ N, and its gradient that of a sum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from numpy import broadcast_shapes

from ...ir.graph import DEFAULT, SUMMED, Argument, Const, Cut, Graph, Ref, Task, Value
from .builder import HALF, Steps, typed, wide
from .moments import batch_norm, batch_norm_backward, mean, per_part, single_valued, variance

__all__ = ["drawn", "single_valued", "summed"]

_NONE, _MEAN, _SUM = 0, 1, 2
"""torch's numbers for the reductions of a loss."""

_LOSSES = {
    "mse_loss": "self target reduction",
    "smooth_l1_loss": "self target reduction beta",
    "huber_loss": "self target reduction delta",
    "soft_margin_loss": "self target reduction",
    "binary_cross_entropy": "self target weight reduction",
    "binary_cross_entropy_with_logits": "self target weight pos_weight reduction",
}
"""Positional arguments of the broadcasting losses that a trace with its backward does not decompose."""

_CLASSES = "self target weight reduction ignore_index"


def native_dropout(steps: Steps) -> bool:
    """Draw the mask by the same kernel, applied to ones: it has the same bits as for the input."""
    arguments = steps.arguments("input p train")
    name, probability = arguments["input"], arguments["p"]
    if steps.task.random != DEFAULT:
        return False
    output, mask = steps.task.outputs
    shape, dtype = steps.shape(name), steps.dtype(name)
    unit = f"{steps.task.name}#unit"
    steps.value(unit, shape, dtype, label="unit")
    ones = _ones(steps, name)
    steps.append(
        steps.task.name, steps.task.target, (Ref(ones), probability, True), (unit, mask), unpack=True
    )
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    if dtype in HALF:
        # The kernel rounds the scale first and then multiplies the input by it.
        steps.pointwise("rows", "aten.mul.Tensor", (Ref(name), Ref(unit)), dtype, make=output)
    else:
        args = (Ref(name), Ref(mask), scale)
        steps.pointwise("rows", "aten.native_dropout_backward.default", args, dtype, make=output)
    # Only the draw keeps the order and place of a random task; the tasks around it have neither.
    plain = (dataclasses.replace(task, random=None, home=False, after=()) for task in steps.tasks)
    steps.tasks = [old if old.name == steps.task.name else new for old, new in zip(steps.tasks, plain)]
    return True


def noise(steps: Steps) -> bool:
    """Make an empty tensor, to be filled with random numbers, independent of its template."""
    (output,) = steps.task.outputs
    if not any(steps.graph.task[reader].random == DEFAULT for reader in steps.graph.readers[output]):
        return False
    shape, dtype = steps.shape(output), steps.dtype(output)
    kwargs = {"dtype": typed(dtype), "device": Const("device")}
    # Keep the memory layout, since numbers are drawn in memory order.
    order = steps.values[output].order
    target = "aten.empty_permuted.default" if order else "aten.empty.memory_format"
    steps.put("", target, (shape, order) if order else (shape,), shape, dtype, kwargs=kwargs, make=output)
    return True


def _ones(steps: Steps, name: str) -> str:
    """Append ones with a value's shape and memory layout, the order of random draws; return their name."""
    value = steps.values[name]
    shape, dtype = value.shape, value.dtype
    order = value.order or tuple(range(len(shape)))
    kwargs = {"dtype": typed(dtype), "device": Const("device")}
    flat = tuple(shape[axis] for axis in order)
    ones = steps.put("ones", "aten.ones.default", (flat,), flat, dtype, kwargs=kwargs)
    if order == tuple(range(len(shape))):
        return ones
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return steps.put("turned", "aten.permute.default", (Ref(ones), back), shape, dtype, view=ones)


def loss(steps: Steps) -> bool:
    """Replace a mean loss by the summed loss ÷ the number of elements."""
    order, inputs = _LOSSES[steps.task.target.split(".")[1]], steps.task.inputs
    shape = broadcast_shapes(*map(steps.shape, inputs))
    if steps.arguments(order, reduction=_MEAN)["reduction"] != _MEAN or 0 in shape:
        return False
    (output,) = steps.task.outputs
    dtype = steps.dtype(output)
    each = dtype in HALF
    args, kwargs = _with(steps, order, _NONE if each else _SUM)
    cuts = steps.rows(inputs, shape, None if each else SUMMED)
    step, form = ("elements", shape) if each else ("sum", ())
    total = steps.put(step, steps.task.target, args, form, dtype, kwargs=kwargs, cuts=cuts)
    if each:
        total = steps.total(total, range(len(shape)), "sum")
    steps.computed_in("", "aten.div.Scalar", (Ref(total), math.prod(shape)), steps.dtype(total), output)
    return True


def backward(steps: Steps) -> bool:
    """Replace the backward by that of the summed loss, given the gradient ÷ N. This is one number, so rows
    are read once."""
    name = steps.task.target.split(".")[1].removesuffix("_backward")
    order = f"grad_output {_LOSSES[name]}"
    arguments = steps.arguments(order, reduction=_MEAN)
    tensors = [value for value in steps.task.inputs if value != arguments["grad_output"]]
    shape = broadcast_shapes(*map(steps.shape, tensors))
    if arguments["reduction"] != _MEAN or 0 in shape or len(tensors) + 1 != len(steps.task.inputs):
        return False
    (output,) = steps.task.outputs
    args, kwargs = _with(steps, order, _SUM)
    dtype = steps.dtype(arguments["grad_output"])
    division = Ref(arguments["grad_output"]), math.prod(shape)
    share = steps.pointwise("share", "aten.div.Scalar", division, dtype)
    names = (share, *tensors)
    steps.put(
        "", steps.task.target, (Ref(share), *args[1:]), steps.shape(output), steps.dtype(output),
        kwargs=kwargs, cuts=steps.rows(names, shape), make=output,
    )  # fmt: skip
    return True


def nll_forward(steps: Steps) -> bool:
    """Replace the NLL loss by the summed loss ÷ the total weight of the targets.

    The total weight is an output of its own that depends only on the targets; otherwise, the gradient, which
    needs it, would wait for the loss of every part.
    """
    arguments = steps.arguments(_CLASSES)
    scores, target = arguments["self"], arguments["target"]
    shape, rows = steps.shape(scores), steps.shape(target)
    # The classes are on axis 1 of the scores.
    if arguments["reduction"] == _NONE or len(shape) < 2 or 0 in shape or rows != (shape[0], *shape[2:]):
        return False
    output, weight = steps.task.outputs
    dtype = steps.dtype(output)
    acc, each = wide(dtype), dtype in HALF
    total = _weight(steps, arguments, acc, weight if steps.dtype(weight) == acc else "")
    if steps.dtype(weight) != acc:
        steps.cast(total, steps.dtype(weight), "weight", weight)
    args, kwargs = _with(steps, _CLASSES, _NONE if each else _SUM)
    step = "elements" if each else "sum"
    last = arguments["reduction"] == _SUM and not each
    part = output if last else steps.named(step)
    unread = f"{steps.task.name}#unread"
    steps.value(part, rows if each else (), dtype)
    steps.value(unread, (), dtype, label="unread")
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
    if arguments["reduction"] == _SUM:
        steps.cast(loss, dtype, "", output)
    else:
        steps.computed_in("", "aten.div.Tensor", (Ref(loss), Ref(total)), steps.dtype(loss), output)
    return True


def _weight(steps: Steps, arguments: dict[str, str], dtype: str, make: str = "") -> str:
    """Append the weight of all targets but ignored ones, by number or class weight; return its name."""
    target, weight, ignored = arguments["target"], arguments["weight"], int(arguments["ignore_index"])
    kwargs: dict[str, Argument] = {"dtype": typed(dtype)}
    if weight is None:
        args: tuple[Argument, ...] = (Ref(target), ignored)
        counted = steps.pointwise("counted", "aten.ne.Scalar", args, "bool", whole=True)
    else:
        out = steps.pointwise("ignored", "aten.eq.Scalar", (Ref(target), ignored), "bool", whole=True)
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


Rule: TypeAlias = Callable[[Steps], bool]
"""Appends the replacement of a task; returns False if there is none."""

_DRAWS: dict[str, Rule] = {
    "native_dropout": native_dropout,
    **dict.fromkeys(("new_empty", "empty_like"), noise),
}
_NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_LOSSES, loss),
    **dict.fromkeys((f"{name}_backward" for name in _LOSSES), backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_forward),
    "mean": mean,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), variance),
    **_DRAWS,
    **dict.fromkeys(_NORMS, batch_norm),
    "native_batch_norm_backward": batch_norm_backward,
}
_PER_PART = _RULES | dict.fromkeys((*_NORMS, "native_batch_norm_backward"), per_part)


def summed(graph: Graph, *, batch_norm: str = "full") -> Graph:
    """Replace tasks that mix rows by tasks that treat rows independently or sum them.

    Mean losses, and means and variances over the first two axes, become sums ÷ N. A dropout draws its whole
    mask from shape and dtype alone and applies it row by row. In training, BatchNorm gets the statistics of
    the whole batch from two sums (`batch_norm="full"`). With `"per_part"`, each part has its own, as in
    `nn.DataParallel`; the first part's update the running ones.

    Equal in exact arithmetic and in random draws. A task `t` becomes `t#sum`, …, `t`; values keep the names
    that readers use. Only useful before a split: else, the captured tasks are faster. Linear in tasks.
    """
    return _rewritten(graph, _PER_PART if batch_norm == "per_part" else _RULES)


def drawn(graph: Graph) -> Graph:
    """Let dropouts draw their whole masks from shape and dtype alone, as in `summed`; change nothing else."""
    return _rewritten(graph, _DRAWS)


def _rewritten(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    values: dict[str, Value] = {value.name: value for value in graph.values}
    tasks: list[Task] = []
    for task in graph.tasks:
        space, _, rest = task.target.partition(".")
        rule = rules.get(rest.partition(".")[0]) if space == "aten" else None
        steps = Steps(graph, task, values)
        tasks += steps.tasks if rule is not None and rule(steps) else (task,)
    outputs = {name for task in tasks for name in task.outputs}
    return dataclasses.replace(
        graph,
        values=tuple(value for value in values.values() if value.kind != "made" or value.name in outputs),
        tasks=tuple(tasks),
    )
