"""Operators as callables, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def by_name(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of an operator by schema name, defaults filled in."""
    return {
        parameter.name: args[place]
        if place < len(args)
        else kwargs.get(parameter.name, parameter.default_value)
        for place, parameter in enumerate(target._schema.arguments)
    }


def tensors(arguments: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments, including those in lists, in order."""
    for item in arguments:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors(item)


def replace_tensors(
    arguments: Any, change: Callable[[Any], Any], kind: type[Any] = Tensor
) -> tuple[Any, ...]:
    """Return the arguments with `change` applied to each tensor, or object of another `kind`, in order."""
    return tuple(
        change(item)
        if isinstance(item, kind)
        else list(replace_tensors(item, change, kind))
        if isinstance(item, (tuple, list))
        else item
        for item in arguments
    )
