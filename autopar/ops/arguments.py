"""Arguments of operator calls: arguments by schema name, and the tensors among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def by_name(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of an operator by schema name, defaults filled in."""
    return {
        given.name: args[place] if place < len(args) else kwargs.get(given.name, given.default_value)
        for place, given in enumerate(target._schema.arguments)
    }


def tensors(arguments: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments, including those in lists, in order."""
    for item in arguments:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors(item)


def replace(arguments: Any, change: Callable[[Any], Any], kind: type[Any] = Tensor) -> tuple[Any, ...]:
    """Return the arguments with each tensor, or object of another `kind`, replaced, in order."""
    return tuple(
        change(item)
        if isinstance(item, kind)
        else list(replace(item, change, kind))
        if isinstance(item, (tuple, list))
        else item
        for item in arguments
    )


def contiguous(given: Any) -> Any:
    """Return a tensor, or the tensors of a list, with contiguous memory."""
    return [each.contiguous() for each in given] if isinstance(given, (tuple, list)) else given.contiguous()


def states_contiguous(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer that takes states of any strides; cuDNN refuses those of a part of a batch."""
    return lambda given, states, *others: layer(given, contiguous(states), *others)
