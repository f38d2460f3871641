"""Builder of the tasks that replace one task, with their cuts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy import broadcast_shapes

from ...ir.graph import SUMMED, Argument, Const, Cut, Graph, Ref, Task, Value

_BYTES = {"bool": 1, "uint8": 1, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
          "complex64": 8, "complex128": 16}  # fmt: skip
HALF = frozenset({"float16", "bfloat16"})
"""Dtypes too coarse for sums; these are in float32, as in torch's own kernels."""


class Steps:
    """New tasks in place of `task`, named `<task>#<step>`; the last one keeps the name.

    Each step adds to `values`, the values of the graph so far.
    """

    def __init__(self, graph: Graph, task: Task, values: dict[str, Value]) -> None:
        self.graph, self.task, self.values = graph, task, values
        self.tasks: list[Task] = []

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.values[name].shape

    def dtype(self, name: str) -> str:
        """Return the dtype of a value."""
        return self.values[name].dtype

    def arguments(self, names: str, **defaults: Any) -> dict[str, Any]:
        """Return arguments by schema name: `names` in order, then keywords; the name of a value for a `Ref`."""
        arguments: dict[str, Any] = dict(defaults)
        arguments.update(zip(names.split(), self.task.args))
        arguments.update(self.task.kwargs)
        return {key: item.value if isinstance(item, Ref) else item for key, item in arguments.items()}

    def put(
        self,
        step: str,
        target: str,
        args: tuple[Argument, ...],
        shape: tuple[int, ...],
        dtype: str,
        *,
        kwargs: Mapping[str, Argument] | None = None,
        cuts: Iterable[Cut] = (),
        make: str = "",
        view: str = "",
    ) -> str:
        """Append a task with one output, named after the step unless `make` names it; return the output's name.

        `view`: the value whose memory the output shares.
        """
        task = self.named(step)
        output = make or task
        self.value(
            output,
            shape,
            dtype,
            view,
            label="" if make else step.rpartition("_")[2] if "." in step else step,
        )
        self.append(task, target, args, (output,), kwargs=kwargs, cuts=cuts, free=bool(view))
        return output

    def append(
        self,
        name: str,
        target: str,
        args: tuple[Argument, ...],
        outputs: tuple[str, ...],
        *,
        kwargs: Mapping[str, Argument] | None = None,
        cuts: Iterable[Cut] = (),
        **more: Any,
    ) -> None:
        """Append a task whose outputs are among the values, with source location and pins of the replaced
        task."""
        origin = self.task.origin or ("" if name == self.task.name else self.task.name)
        self.tasks.append(
            dataclasses.replace(
                self.task,
                name=name,
                target=target,
                args=args,
                kwargs=tuple((kwargs or {}).items()),
                outputs=outputs,
                cuts=tuple(dict.fromkeys(cuts)),
                origin=origin,
                **{"unpack": False, "free": False, "flops": 0} | more,
            )
        )

    def named(self, step: str) -> str:
        """Return the name of a step's task; without a step, that of the last task."""
        return f"{self.task.name}#{step}" if step else self.task.name

    def value(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        view: str = "",
        label: str = "",
    ) -> None:
        """Add a value, or update an existing one. `label`: that of the value."""
        storage, known = self.values[view].storage if view else name, self.values.get(name)
        order = known.order if known is not None and known.shape == shape else ()
        nbytes = math.prod(shape) * _BYTES[dtype]
        self.values[name] = Value(name, shape, dtype, nbytes, storage, order=order, label=label)

    def cast(self, name: str, dtype: str, step: str, make: str = "") -> str:
        """Return the value in this dtype; the value itself if it has this dtype and needs no other name."""
        if self.dtype(name) == dtype and not make:
            return name
        return self.pointwise(
            step, "aten._to_copy.default", (Ref(name),), dtype, kwargs={"dtype": typed(dtype)}, make=make
        )

    def pointwise(
        self,
        step: str,
        target: str,
        args: tuple[Argument, ...],
        dtype: str,
        *,
        kwargs: Mapping[str, Argument] | None = None,
        make: str = "",
        whole: bool = False,
    ) -> str:
        """Append a task with broadcast arguments, with cuts along every axis, or along none if `whole`; return its
        output."""
        names = [argument.value for argument in args if isinstance(argument, Ref)]
        shape = broadcast_shapes(*map(self.shape, names))
        cuts = () if whole else self.rows(names, shape)
        return self.put(step, target, args, shape, dtype, kwargs=kwargs, cuts=cuts, make=make)

    def rows(self, names: Sequence[str], shape: tuple[int, ...], outputs: int | None = None) -> list[Cut]:
        """Return a cut along each axis of values that broadcast to `shape`; `outputs` is SUMMED if they are summed."""
        return [
            Cut(tuple(aligned(self.shape(name), axis, shape) for name in dict.fromkeys(names)),
                (axis if outputs is None else outputs,))
            for axis, size in enumerate(shape)
            if size > 1
        ]  # fmt: skip

    def total(self, name: str, axes: Sequence[int], step: str, *, keep: bool = False, dtype: str = "") -> str:
        """Append a sum over axes; return its name. Along these, parts are summands, along others parts of the
        sum."""
        shape, dtype = self.shape(name), dtype or wide(self.dtype(name))
        rest = [axis for axis in range(len(shape)) if keep or axis not in axes]
        shape_out = tuple(1 if axis in axes else shape[axis] for axis in rest)
        cuts = [
            Cut((axis,), (SUMMED if axis in axes else rest.index(axis),))
            for axis, size in enumerate(shape)
            if size > 1
        ]
        kwargs = {} if dtype == self.dtype(name) else {"dtype": typed(dtype)}
        args = (Ref(name), tuple(axes), keep)
        return self.put(step, "aten.sum.dim_IntList", args, shape_out, dtype, kwargs=kwargs, cuts=cuts)

    def computed_in(
        self, step: str, target: str, args: tuple[Argument, ...], dtype: str, make: str, like: str = ""
    ) -> str:
        """Append a pointwise task that computes in `dtype`. Its result `make` has its own dtype or that of
        `like`."""
        goal = self.dtype(like or make)
        if goal == dtype:
            return self.pointwise(step, target, args, dtype, make=make)
        inner = self.pointwise(f"{step}_wide" if step else "wide", target, args, dtype)
        return self.cast(inner, goal, step, make)


def wide(dtype: str) -> str:
    """Return the dtype in which to sum values of this dtype."""
    return "float32" if dtype in HALF else dtype


def typed(dtype: str) -> Const:
    """Return a dtype as an argument."""
    return Const(f"torch.{dtype}")


def aligned(shape: tuple[int, ...], axis: int, whole: tuple[int, ...]) -> int | None:
    """Return the axis that broadcasts into axis `axis` of `whole`; None if the value is needed whole."""
    place = axis - (len(whole) - len(shape))
    return place if place >= 0 and shape[place] == whole[axis] else None


def axes_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in order; None or an empty tuple means all."""
    if dims is None or dims == ():
        return tuple(range(rank))
    axes = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(axis + rank if axis < 0 else axis for axis in axes))


def holds_batch(shape: tuple[int, ...], axes: Sequence[int]) -> bool:
    """Return True if the batch, which is on one of the first two axes, may be on one of `axes`."""
    return any(axis < 2 and shape[axis] > 1 for axis in axes)
