"""Dropout: the mask is drawn as a whole, at home and in program order, and applied row by row."""

from __future__ import annotations

import dataclasses

from ...ir.graph import DEFAULT, Const, Ref
from .builder import HALF, Steps, typed


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
    ones = _ones(steps, shape, dtype, steps.values[name].order)
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
    order = steps.values[made].order
    target = "aten.empty_permuted.default" if order else "aten.empty.memory_format"
    steps.put("", target, (shape, order) if order else (shape,), shape, dtype, kwargs=kwargs, make=made)
    return True


def _ones(steps: Steps, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> str:
    """Append ones with the memory layout of the input, in whose order numbers are drawn; return their name."""
    kwargs = {"dtype": typed(dtype), "device": Const("device")}
    flat = tuple(shape[axis] for axis in order) or shape
    ones = steps.put("ones", "aten.ones.default", (flat,), flat, dtype, kwargs=kwargs)
    if not order:
        return ones
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return steps.put("turned", "aten.permute.default", (Ref(ones), back), shape, dtype, view=ones)
