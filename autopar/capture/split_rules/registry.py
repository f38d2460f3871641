"""One call of an operator as the cut rules see it, and the register the rules write themselves into."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class Way:
    """One way to cut a call, in the operator's own words.

    `inputs` gives the axis of each argument that is cut, by schema name, a sequence of axes for a list of
    tensors; what it lacks is needed whole. `outputs` is the axis of each output, one number for all of them;
    `SUMMED` where parts make summands, and in either `OWN`, as in `Cut`.
    `scale` names the integer arguments that shrink: `("size", 0)`, or `("N",)` for a bare integer.
    """

    inputs: Mapping[str, int | Sequence[int | None] | None]
    outputs: int | Sequence[int | None]
    scale: tuple[tuple[str | int, ...], ...] = ()


Rule: TypeAlias = "Callable[[Call], Iterator[Way]]"

RULES: dict[str, Rule] = {}
"""Rules by the operator's name without its overload: `aten::linear`."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for these `aten` operators, of which a text may name several."""

    def register(function: Rule) -> Rule:
        for name in " ".join(names).split():
            RULES[name if "::" in name else f"aten::{name}"] = function
        return function

    return register


def always(*ways: Way) -> Rule:
    """The rule of operators that may be cut in these ways whatever their arguments."""
    return lambda call: iter(ways)


class Call:
    """An operator with its arguments by schema name, defaults filled in, and its outputs in a row.

    Attributes:
        name: the operator without overload, `aten::sum`.
        arguments: argument by schema name.
        position: index into the positional arguments, for those that were given by position.
        outputs: the output, or each item when the operator returns several.
    """

    def __init__(
        self, target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ):
        schema = target._schema.arguments
        self.name: str = target._schema.name
        self.arguments: dict[str, Any] = {}
        self.position: dict[str, int] = {}
        for index, argument in enumerate(schema):
            if index < len(args) and not argument.kwarg_only:
                self.arguments[argument.name] = args[index]
                self.position[argument.name] = index
            else:
                self.arguments[argument.name] = kwargs.get(argument.name, argument.default_value)
        self.outputs: tuple[Any, ...] = tuple(output) if isinstance(output, list | tuple) else (output,)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument, or the default where this overload has none of that name."""
        return self.arguments.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor argument."""
        return tuple(self.arguments[name].shape)

    def rank(self, name: str) -> int:
        """Number of axes of a tensor argument."""
        return self.arguments[name].dim()

    def is_tensor(self, name: str) -> bool:
        """True if this overload has the argument and was given a tensor for it."""
        return isinstance(self.arguments.get(name), torch.Tensor)

    @property
    def output(self) -> torch.Tensor:
        """The first output."""
        return self.outputs[0]

    def tensors(self) -> Iterator[tuple[str, int | None, torch.Tensor]]:
        """Each tensor argument as (schema name, index in its list or None, tensor)."""
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                yield name, None, value
            elif isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        yield name, index, item


def kept(
    call: Call, *names: str, but: Container[int] = (), gone: Sequence[int] | frozenset[int] = ()
) -> Iterator[Way]:
    """A way for each axis of these tensors, which run side by side, `but` some; outputs lack the axes that are `gone`.

    A name that the call has no tensor for stands for nothing.
    """
    for axis in range(call.rank(names[0])):
        if axis not in but:
            yield Way(dict.fromkeys(names, axis), axis - sum(other < axis for other in gone))


def axis_of(dim: int, rank: int) -> int:
    """The axis counted from the front."""
    return dim + rank if dim < 0 else dim


def axes_of(dims: int | Sequence[int] | None, rank: int) -> frozenset[int]:
    """The axes counted from the front; none given, or an empty list, means all of them (as in reductions)."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return frozenset(range(rank))
    return frozenset(axis_of(dim, rank) for dim in ([dims] if isinstance(dims, int) else dims))


def aligned(tensor: torch.Tensor, axis: int, shape: Sequence[int]) -> int | None:
    """Axis of a tensor that broadcasts into axis `axis` of `shape`; None where it is needed whole."""
    own = axis - (len(shape) - tensor.dim())
    return own if own >= 0 and tensor.shape[own] == shape[axis] and shape[axis] != 1 else None


def broadcasting(call: Call, axis: int, shape: Sequence[int]) -> dict[str, Any]:
    """Axes of all tensor arguments of a call that broadcasts them to `shape`."""
    found: dict[str, Any] = {}
    for name, index, tensor in call.tensors():
        own = aligned(tensor, axis, shape)
        if index is None:
            found[name] = own
        else:
            found.setdefault(name, [None] * len(call[name]))[index] = own
    return found
