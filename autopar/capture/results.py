"""The results of a call for its sizes (numbers for symbolic sizes, strides of tensors), and captured graphs
for other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from ..ir.costed import CostedGraph
from ..ir.graph import UPDATES, Argument, Value, refs
from .captured import Captured
from .dynamo_private import in_python
from .refusals import Untraceable
from .region import Region
from .symbols import OPEN, extents_of, is_open
from .torch_private import computed, memory, pytree

_PLAIN: dict[Any, Any] = dict(zip(OPEN, (int, float, bool)))


def expressions(symbols: Sequence[torch.SymInt | torch.SymFloat]) -> tuple[sympy.Expr, ...]:
    """Return symbolic sizes and floats as expressions in the sizes and floats of arguments."""
    return tuple(size.node.shape_env.replace(size.node.expr) for size in symbols)


def resolver(region: Region, given: Sequence[Any]) -> Callable[[Any], Any]:
    """Return a function that puts one call's plain sizes into a fake result; shared memory stays shared.

    `given`: the call's arguments. This adds no guards; converting a symbol to a number would fix the size for all
    calls. The function raises Untraceable for a size that depends on the values in a tensor.
    """
    symbols: dict[Any, Any] = {
        symbol: extents_of(given[position])[place] for position, place, symbol in region.symbols
    }
    known, storages = {**computed(region.numbers.of, given), **symbols}, dict[Any, Any]()

    def plain(size: Any) -> Any:
        expression = size.node.expr
        if expression in known:
            return known[expression]
        if not expression.free_symbols <= symbols.keys():
            expression = size.node.shape_env.replace(expression)
        if not expression.free_symbols <= symbols.keys():
            raise Untraceable(f"the size {expression} depends on the values in a tensor")
        known[size.node.expr] = _PLAIN[type(size)](in_python(expression, symbols))
        return known[size.node.expr]

    def at(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(at, value))
        if isinstance(value, OPEN):
            return plain(value)
        if not is_open(value):
            return value
        # No symbol of the call tells the size of a viewed tensor: the storage grows with the views of it.
        storage = storages.setdefault(memory(value), torch.UntypedStorage(0, device="meta"))
        view = torch.empty(0, dtype=value.dtype, device="meta")
        return view.set_(storage, at(value.storage_offset()), at(value.shape), at(value.stride()))

    return at


def results(region: Region, at: Callable[[Any], Any]) -> dict[str, Any]:
    """Return `rebuild`, `strides` and `alike` of a `Captured`; `at` puts the sizes of one call into fakes."""
    fakes = [result.fake for result in region.results]
    tensors = [place for place, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    known = [None if isinstance(fake, torch.Tensor) else at(fake) for fake in fakes]
    strides = [at(wanted) for wanted, _ in region.layouts]
    alike = tuple(at(traced) == wanted for (_, traced), wanted in zip(region.layouts, strides))

    def rebuild(values: Sequence[Any]) -> list[Any]:
        """Return the results of the region, tensors and plain numbers, from the outputs of the graph."""
        filled = list(known)
        for place, value in zip(tensors, values):
            filled[place] = value
        return filled

    return {"rebuild": rebuild, "strides": strides, "alike": alike}


def with_open(
    region: Region,
    made: Mapping[Any, Argument],
    values: Mapping[str, Value],
    number: Callable[[Any, Any], Any],
) -> Iterator[Value]:
    """Yield the values of a conversion that have open extents, with `Value.open`.

    made: values by node of the region's graph. number: the argument for a symbol with this value.
    """
    known: dict[str, tuple[int, ...]] = {}
    for node, traced in region.open.items():
        # A result that is None is a value too.
        for name, leaf in zip(refs(made.get(node)), pytree.tree_leaves(traced)):
            if not isinstance(leaf, torch.Tensor) or not is_open(leaf):
                continue
            shape, text = values[name].shape, str(tuple(leaf.shape))
            if text not in known:
                sizes = (*leaf.shape, math.prod(leaf.shape))
                known[text] = tuple(map(number, sizes, (*shape, math.prod(shape))))
            yield replace(values[name], open=known[text])


def resizable(captured: Captured, costed: CostedGraph) -> bool:
    """Return True if a planned graph also computes calls with other sizes. It does if no time is declared and
    each task is as captured, with all its open arguments, or updates parameters."""
    own = captured.graph.task
    return (
        captured.open is not None
        and costed.machine.clock == "real"
        and all(
            task.target in UPDATES or repr(task) == repr(own.get(task.name)) for task in costed.graph.tasks
        )
    )


def resized(region: Region, captured: Captured, given: Sequence[Any]) -> Captured:
    """Return a capture with the sizes and results of the call `given`; the graph stays that of the call for
    which it was made."""
    assert captured.open is not None
    at = resolver(region, given)
    sizes = tuple(map(at, captured.open))
    return replace(captured, sizes=sizes, **results(region, at))


def with_sizes(captured: Captured, other: Captured) -> Captured:
    """Return a capture with the sizes and results of another capture of its region."""
    return replace(
        captured, sizes=other.sizes, rebuild=other.rebuild, strides=other.strides, alike=other.alike
    )
