"""Tensors without elements: `Form`, and what a call of a task makes of them on any type of device.

Calls are torch's own, on fake tensors. No tensor is computed, and no device need be there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..capture import autocast as casting
from ..capture.convert import memory_order
from ..capture.torch_private import FakeTensorMode
from ..ir.graph import Task
from ..ops import resolve as bind


class Form(NamedTuple):
    """A tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Made:
    """One output of a call: its form (None: no tensor) and whose memory it is in: of the input with this index, of
    the output ~index where it is below zero, its own where it is None.
    """

    form: Form | None
    memory: int | None


def meaning(target: str, calls: Mapping[str, Callable[..., Any]] | None = None) -> Callable[..., Any]:
    """The callable of a task's target for fake tensors: of our own operators their fakes. ProgramError for an unknown
    one."""
    space, _, rest = target.partition(".")
    if space == "autopar" and "." in rest:
        bind.target(target, calls)  # defines it
        name, _, overload = rest.partition(".")
        found: Callable[..., Any] = getattr(getattr(torch.ops.autopar, name), overload)
        return found
    return bind.target(target, calls)


def called(task: Task, kind: str, given: tuple[Form | None, ...]) -> tuple[Made, ...]:
    """Outputs of a task, whose values are named by their index, for inputs of these forms on a type of device.

    Raises what torch raises, also where this build of torch has no such call.
    """
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
    function = meaning(task.target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(casting.off((kind,)))
        stack.enter_context(FakeTensorMode())
        tensors = [
            None
            if form is None
            else torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=device)
            for form in given
        ]
        made = bind.called(task, function, lambda name: tensors[int(name)], device)
        owner: dict[int, int] = {}
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                owner.setdefault(tensor.untyped_storage()._cdata, index)
        return tuple(_outputs(made if task.unpack else [made], owner) if task.outputs else ())


def _outputs(made: Any, owner: dict[int, int]) -> Iterator[Made]:
    for index, item in enumerate(made):
        if not isinstance(item, torch.Tensor):
            yield Made(None, None)
            continue
        memory = item.untyped_storage()._cdata
        yield Made(Form(tuple(item.shape), item.stride(), item.dtype), owner.get(memory))
        owner.setdefault(memory, ~index)


@lru_cache(maxsize=4096)
def copied(form: Form) -> Form:
    """A copy of it, which is dense."""
    tensor = torch.empty_strided(form.shape, form.strides, device="meta")
    return form._replace(strides=torch.empty_like(tensor).stride())


@lru_cache(maxsize=4096)
def axes(form: Form) -> tuple[int, ...]:
    """`Value.order` of it."""
    return memory_order(torch.empty_strided(form.shape, form.strides, device="meta"))


@lru_cache(maxsize=4096)
def in_order(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of dense memory whose axes, from the slowest, are these; they are in order when it is empty."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)
