"""Rewrites of tasks that mix rows into tasks that treat rows independently or sum them: `summed`, with a rule for each
operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...ir.graph import DEFAULT, Const, Graph, Ref, Task, Value
from ...ir.open_size import extents
from .builder import HALF, Steps, typed
from .losses import LOSSES, backward, loss, nll_forward
from .moments import batch_norm, batch_norm_backward, mean, per_part, single_valued, variance

__all__ = ["drawn", "single_valued", "summed"]


def native_dropout(steps: Steps) -> bool:
    """Draw the mask by the same kernel on ones, with the same bits as for the input."""
    given = steps.given("input p train")
    name, probability = given["input"], given["p"]
    if steps.task.random != DEFAULT:
        return False
    made, mask = steps.task.outputs
    shape, dtype = steps.shape(name), steps.dtype(name)
    unit = f"{steps.task.name}#unit"
    steps.value(unit, shape, dtype)
    ones = _ones(steps, name)
    steps.append(
        steps.task.name, steps.task.target, (Ref(ones), probability, True), (unit, mask), unpack=True
    )
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    if dtype in HALF:
        # As the kernel rounds: the input by a scale that was rounded first.
        steps.pointwise("rows", "aten.mul.Tensor", (Ref(name), Ref(unit)), dtype, make=made)
    else:
        args = (Ref(name), Ref(mask), scale)
        steps.pointwise("rows", "aten.native_dropout_backward.default", args, dtype, make=made)
    # Only the draw keeps the order and the place of a random task; what comes before and after has neither.
    plain = (dataclasses.replace(task, random=None, home=False, after=()) for task in steps.tasks)
    steps.tasks = [old if old.name == steps.task.name else new for old, new in zip(steps.tasks, plain)]
    return True


def noise(steps: Steps) -> bool:
    """Make the empty tensor to be filled with random numbers independent of its template."""
    (made,) = steps.task.outputs
    if not any(steps.graph.task[reader].random == DEFAULT for reader in steps.graph.readers[made]):
        return False
    shape, dtype = steps.shape(made), steps.dtype(made)
    kwargs = {"dtype": typed(dtype), "device": Const("device")}
    # As the other lies in memory: in that order the numbers are drawn.
    order, sizes = steps.values[made].order, extents(steps.values[made])
    target = "aten.empty_permuted.default" if order else "aten.empty.memory_format"
    steps.put("", target, (sizes, order) if order else (sizes,), shape, dtype, kwargs=kwargs, make=made)
    return True


def _ones(steps: Steps, name: str) -> str:
    """Append ones with the shape and memory layout of a value, in whose order numbers are drawn; return their name."""
    value = steps.values[name]
    shape, dtype = value.shape, value.dtype
    order = value.order or tuple(range(len(shape)))
    kwargs = {"dtype": typed(dtype), "device": Const("device")}
    flat, given = (tuple(item[axis] for axis in order) for item in (shape, extents(value)))
    ones = steps.put("ones", "aten.ones.default", (given,), flat, dtype, kwargs=kwargs)
    if order == tuple(range(len(shape))):
        return ones
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return steps.put("turned", "aten.permute.default", (Ref(ones), back), shape, dtype, view=ones)


Rule: TypeAlias = Callable[[Steps], bool]
"""Appends the replacement of a task; returns whether it did."""

_DRAWS: dict[str, Rule] = {
    "native_dropout": native_dropout,
    **dict.fromkeys(("new_empty", "empty_like"), noise),
}
_NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys((f"{name}_backward" for name in LOSSES), backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_forward),
    "mean": mean,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), variance),
    **_DRAWS,
    **dict.fromkeys(_NORMS, batch_norm),
    "native_batch_norm_backward": batch_norm_backward,
}
_PER_PART = _RULES | dict.fromkeys((*_NORMS, "native_batch_norm_backward"), per_part)


def summed(graph: Graph, *, batch_norm: str = "full") -> Graph:
    """Replace tasks that mix rows by tasks that pass rows or sum over them.

    Mean losses become sums ÷ N, means and variances over the first two axes sums ÷ N; a dropout draws its whole mask
    from shape and dtype alone and applies it row by row. In training, BatchNorm uses the statistics of the whole batch
    from two sums (`batch_norm="full"`), or, as in `nn.DataParallel`, each part its own, with the first part's for the
    running statistics (`"per_part"`).

    Equal in exact arithmetic, and in the random draws. A task `t` becomes `t#sum`, …, `t`; values keep the names that
    readers use. Only useful before a split: for a whole batch the captured tasks are faster. Linear in tasks.
    """
    return _rewritten(graph, _PER_PART if batch_norm == "per_part" else _RULES)


def drawn(graph: Graph) -> Graph:
    """Let dropouts draw the whole mask from shape and dtype alone, as in `summed`, and change nothing else."""
    return _rewritten(graph, _DRAWS)


def _rewritten(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    values: dict[str, Value] = {value.name: value for value in graph.values}
    tasks: list[Task] = []
    for task in graph.tasks:
        space, _, rest = task.target.partition(".")
        rule = rules.get(rest.partition(".")[0]) if space == "aten" else None
        steps = Steps(graph, task, values)
        tasks += steps.tasks if rule is not None and rule(steps) else (task,)
    kept = {name for task in tasks for name in task.outputs}
    return dataclasses.replace(
        graph,
        values=tuple(value for value in values.values() if value.kind != "made" or value.name in kept),
        tasks=tuple(tasks),
    )
