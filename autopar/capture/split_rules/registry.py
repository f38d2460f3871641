"""An operator call as the split rules see it, and the register of the rules."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...ops import by_name
from ..torch_private import OpOverload


@dataclass(frozen=True, slots=True)
class Way:
    """One way to split a call, in terms of the operator's schema.

    inputs: axis of each split argument by schema name, a sequence of axes for a list of tensors; all other
    arguments are needed whole.
    outputs: axis of each output, or one number for all; `SUMMED` for summands; both may be `OWN`.
    scale: integer arguments that shrink with the part: `("size", 0)`, or `("N",)` for a bare integer.
    """

    inputs: Mapping[str, int | Sequence[int | None] | None]
    outputs: int | Sequence[int | None]
    scale: tuple[tuple[str | int, ...], ...] = ()

    def axis(self, name: str, item: int | None) -> int | None:
        """Return the axis along which one tensor argument, or this item of a list, is split."""
        given = self.inputs.get(name)
        return given if given is None or isinstance(given, int) else given[item or 0]

    def output_axes(self, count: int) -> tuple[int | None, ...]:
        """Return the axis of each of `count` outputs."""
        return (self.outputs,) * count if isinstance(self.outputs, int) else tuple(self.outputs)


Rule: TypeAlias = "Callable[[Call], Iterator[Way]]"

RULES: dict[str, Rule] = {}
"""Rules by operator name without overload: `aten::linear`."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for these `aten` operators; a text may name several."""

    def register(function: Rule) -> Rule:
        for name in " ".join(names).split():
            RULES[name if "::" in name else f"aten::{name}"] = function
        return function

    return register


def always(*ways: Way) -> Rule:
    """Return the rule of operators with these ways for any arguments."""
    return lambda call: iter(ways)


class Call:
    """An operator call with arguments by schema name, defaults filled in, and its outputs in a tuple.

    Attributes:
        name: operator without overload, `aten::sum`.
        arguments: arguments by schema name.
        position: index of each positional argument.
        outputs: the output, or each item if the operator returns several.
    """

    def __init__(self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any):
        self.name: str = target._schema.name
        self.arguments: dict[str, Any] = by_name(target, args, kwargs)
        self.position: dict[str, int] = {
            name: index for index, name in enumerate([*self.arguments][: len(args)])
        }
        self.outputs: tuple[Any, ...] = tuple(output) if isinstance(output, list | tuple) else (output,)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the argument, or the default if this overload lacks it."""
        return self.arguments.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor argument."""
        return tuple(self.arguments[name].shape)

    def rank(self, name: str) -> int:
        """Return the number of axes of a tensor argument."""
        return self.arguments[name].dim()

    def is_tensor(self, name: str) -> bool:
        """Return True if this overload has the argument and it is a tensor."""
        return isinstance(self.arguments.get(name), torch.Tensor)

    @property
    def output(self) -> torch.Tensor:
        """The first output."""
        return self.outputs[0]

    def tensors(self) -> Iterator[tuple[str, int | None, torch.Tensor]]:
        """Yield each tensor argument as (schema name, index in its list or None, tensor)."""
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                yield name, None, value
            elif isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        yield name, index, item


def same_axes(
    call: Call,
    *names: str,
    last: int = 0,
    but: Container[int] = (),
    gone: Sequence[int] | frozenset[int] = (),
) -> Iterator[Way]:
    """Yield a way for each axis along which to split these tensors together, except the `last` ones and
    `but`; outputs lack the axes `gone`.

    A name without a tensor in the call is ignored.
    """
    for axis in range(call.rank(names[0]) - last):
        if axis not in but:
            yield Way(dict.fromkeys(names, axis), axis - sum(other < axis for other in gone))


def axis_of(dim: int, rank: int) -> int:
    """Return the axis counted from the front."""
    return dim + rank if dim < 0 else dim


def axes_of(dims: int | Sequence[int] | None, rank: int) -> frozenset[int]:
    """Return the axes counted from the front; None or an empty list means all, as in reductions."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return frozenset(range(rank))
    return frozenset(axis_of(dim, rank) for dim in ([dims] if isinstance(dims, int) else dims))


def aligned(tensor: torch.Tensor, axis: int, shape: Sequence[int]) -> int | None:
    """Return the tensor's axis that broadcasts to axis `axis` of `shape`; None if it is needed whole."""
    own_axis = axis - (len(shape) - tensor.dim())
    return own_axis if own_axis >= 0 and tensor.shape[own_axis] == shape[axis] and shape[axis] != 1 else None


def broadcast(
    call: Call,
    shape: Sequence[int],
    *,
    but: Container[int] = (),
    gone: Sequence[int] = (),
    output: int | None = None,
) -> Iterator[Way]:
    """Yield a way for each axis except `but` of the `shape` to which a call broadcasts its tensors. Outputs
    lack the axes `gone`, or are `output` for every axis."""
    for axis in range(len(shape)):
        if axis in but:
            continue
        inputs: dict[str, Any] = {}
        for name, index, tensor in call.tensors():
            aligned_axis = aligned(tensor, axis, shape)
            if index is None:
                inputs[name] = aligned_axis
            else:
                inputs.setdefault(name, [None] * len(call[name]))[index] = aligned_axis
        yield Way(inputs, axis - sum(other < axis for other in gone) if output is None else output)
