"""The results of a call for its sizes (numbers for symbolic sizes, strides of tensors), and captured graphs
for other sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from ..ir.costed import CostedGraph
from ..ir.graph import JOIN, PART, SUM, UPDATES, Argument, Task, Value, refs
from ..ir.open_size import OPENED
from .captured import Captured
from .refusals import Untraceable
from .region import Region
from .symbols import OPEN, computed, extents_of, is_open
from .torch_private import in_python

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
    known, storages = {**computed(region.numbers.of, given), **symbols}, dict[int, Any]()

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
        memory = value.untyped_storage()._cdata
        if memory not in storages:
            # No symbol of the call tells the size of a viewed tensor: the storage grows with the views of it.
            storages[memory] = torch.UntypedStorage(0, device="meta")
        made = torch.empty(0, dtype=value.dtype, device="meta")
        return made.set_(storages[memory], at(value.storage_offset()), at(value.shape), at(value.stride()))

    return at


def results(region: Region, at: Callable[[Any], Any]) -> dict[str, Any]:
    """Return `rebuild`, `strides` and `alike` of a `Captured`; `at` puts the sizes of one call into fakes."""
    fakes = [result.fake for result in region.results]
    tensors = [place for place, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    known = [None if isinstance(fake, torch.Tensor) else at(fake) for fake in fakes]
    strides = [at(wanted) for wanted, _ in region.layouts]
    alike = tuple(at(made) == wanted for (_, made), wanted in zip(region.layouts, strides))

    def rebuild(values: Sequence[Any]) -> list[Any]:
        """Return the results of the region, tensors and plain numbers, from the outputs of the graph."""
        found = list(known)
        for place, value in zip(tensors, values):
            found[place] = value
        return found

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


def extents(region: Region, at: Callable[[Any], Any]) -> tuple[int, ...]:
    """Return the sizes of the region's values and the products of each one's leading sizes, by `at`."""
    return tuple(
        extent for shape in map(at, region.shapes) for extent in (*shape, *accumulate(shape, operator.mul))
    )


def alike_in(one: Sequence[int], other: Sequence[int], given: Sequence[int], rows: int) -> bool:
    """Return True if what the extents of two calls have in common also holds in the call `given`: which of
    them are equal, do not vary, or are multiples of the batch of `rows`."""
    found: dict[tuple[int, int], int] = {}
    return all(
        found.setdefault((a, b), a if a == b else size) == size and (a % rows or b % rows or not size % rows)
        for a, b, size in zip(one, other, given, strict=True)
    )


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


def form(captured: Captured, costed: CostedGraph) -> tuple[Any, ...] | None:
    """Return all that a split graph computes, in terms of the sizes of a call; None if it holds for its own
    sizes only because a time is declared, or a task has open numbers that differ from the captured ones.

    Graphs of one form, made for calls with different sizes, also compute other calls that are `alike_in` these sizes:
    none was split along an axis that only happened to be as long as the batch.
    """
    graph, own = costed.graph, captured.graph.task
    if captured.open is None or costed.machine.clock != "real" or not graph.split:
        return None
    made: list[Any] = [graph.split, graph.outputs, graph.updates]
    for task in graph.tasks:
        arguments = pytree.tree_map_only(OPENED, lambda number: number.code, (task.args, task.kwargs))
        made.append((task.name, task.target, task.outputs, repr(arguments)))
        known = own.get(task.origin or task.name)
        if task.target in _SIZELESS or (known is None and task.target in _LAID):
            continue
        if known is None or (known.target == task.target and _open(known) != _open(task)):
            return None
        if known.target != task.target and task.target not in _LAID and not _counts(task) <= _counts(known):
            # A number of elements: it holds for calls with the same extents, of which it may be a product.
            made.append(tuple(captured.graph.value[name].shape for name in known.inputs))
    return tuple(made)


_SIZELESS = frozenset((*UPDATES, JOIN, PART, SUM))
"""Targets of tasks whose numbers depend on no size but the batch."""

_LAID = frozenset(
    f"aten.{name}"
    for name in (
        "empty.memory_format", "empty_permuted.default", "flatten_dense_tensors.default", "ones.default",
        "permute.default", "reshape.default", "split_with_sizes.default", "sum.dim_IntList",
    )
)  # fmt: skip
"""Targets of tasks that rewrites add; their numbers are axes and extents of values."""


def _counts(task: Task) -> set[int]:
    """Return the integer arguments of a task that do not depend on the sizes of a call."""
    return {item for item in pytree.tree_leaves((task.args, task.kwargs)) if type(item) is int}


def _open(task: Task) -> list[int]:
    """Return the places of the arguments of a task that depend on the sizes and floats of a call."""
    leaves = pytree.tree_leaves((task.args, task.kwargs))
    return [item.place for item in leaves if isinstance(item, OPENED)]


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
