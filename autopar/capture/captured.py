"""`Captured`, the result of a capture; the strides of its outputs, and slices of the user's own parameters, always up
to date (`sliced`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..ir.graph import Graph
from ..ir.slices import Slice


@dataclass(frozen=True)
class Captured:
    """A graph and its links to the live model.

    state: (owner, key) of each state value, whose tensor is `owner[key]`: the module's own dict, so that an optimizer
    step or `load_state_dict` is seen at the next call.
    calls: targets that are not torch operators.
    flatten(args): tensors in the order of `graph.inputs`.
    rebuild(values): the user's structure from values in the order of `graph.outputs`.
    home: device of the call.
    same: (index of an output, input or state value) that eager returns as the very same object.
    strides: those of each output in eager, by fake tensors (None: those of the graph), restored if the check sees
    others.
    alike: for each output, whether fake tensors have equal strides in the graph.
    tangents: (input value, index of the output whose gradient it is) of a differentiated graph, after the call's
    inputs.
    gradients: (input or state value, its gradient), after the outputs, unless the graph updates weights with them.
    open: the symbol of each `OpenSize` of the graph, by place; None if it holds for the sizes of one call alone.
    sizes: the numbers for these symbols in the call.
    extents: the sizes of the region's values in the call of `graph`, and the products of the leading ones of each.

    `flatten` and `rebuild` are of the call without tangents and gradients.
    """

    graph: Graph
    state: dict[str, tuple[Mapping[str, Any], str]]
    calls: dict[str, Callable[..., Any]]
    flatten: Callable[[Sequence[Any]], list[torch.Tensor]]
    rebuild: Callable[[list[Any]], Any]
    home: torch.device
    same: tuple[tuple[int, str], ...] = ()
    strides: list[tuple[int, ...] | None] = field(default_factory=list)
    alike: tuple[bool, ...] = ()
    tangents: tuple[tuple[str, int], ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    open: tuple[torch.SymInt, ...] | None = None
    sizes: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()

    def kernels_trusted(self) -> Captured:
        """Return it for a program without transfers and rejoins, whose kernels give eager's strides wherever the graph
        has them; fake tensors do not always know them (`roll`, `batch_norm`)."""
        strides = [None if same else wanted for wanted, same in zip(self.strides, self.alike)]
        return replace(self, strides=strides)

    def with_slices(self, graph: Graph) -> Captured:
        """Return it for a rewritten graph in which some state is a part of this graph's."""
        parts = {value.name: value.slice for value in graph.values if value.slice}
        found = {
            name: (sliced(*self.state[part.of], part), self.state[part.of][1]) for name, part in parts.items()
        }
        return replace(self, state={**self.state, **found}) if found else self

    @cached_property
    def stateful(self) -> bool:
        """True if a call leaves something behind that the next one reads: a buffer, a generator's state."""
        return bool(self.graph.mutated) or any(task.random for task in self.graph.tasks)


Strides = tuple[int, ...]
GAPS = 1 << 20
"""Limit on the bytes of gaps that are reproduced (or the bytes of the elements, if more): a copy of a large tensor's
view does not have the rest of it."""


def strides_of(item: Any) -> Strides | None:
    """Return the strides of a tensor; None for other values."""
    strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
    return tuple(item.stride()) if strided else None


def alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Return True if a tensor has these strides along all axes of more than one element."""
    found = tensor.stride()
    if found == strides or tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, found, strides))


def laid(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return the tensor with these strides; itself if it has them.

    Axes of stride 0 are expanded; instead of large gaps (`GAPS`) the copy is dense, with its axes in the same order.
    """
    if alike(tensor, strides):
        return tensor
    own = tensor
    for axis, step in enumerate(strides):
        if step == 0:
            own = own.narrow(axis, 0, 1)
    span = 1 + sum((size - 1) * step for size, step in zip(own.shape, strides))
    made = torch.empty_strided(own.shape, strides, dtype=own.dtype, device="meta")
    if (span - own.numel()) * own.element_size() > max(GAPS, own.nbytes):
        made = torch.empty_like(made)
    made = torch.empty_strided(own.shape, made.stride(), dtype=own.dtype, device=own.device)
    return made.copy_(own).expand(tensor.shape)


def memory_order(item: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor from the slowest to the fastest; empty if they are in order."""
    if item.layout is not torch.strided or item.is_contiguous():
        return ()
    order = _order(item.stride())
    dense = 1
    for axis in reversed(order):
        if item.shape[axis] != 1 and item.stride(axis) != dense:
            # Of memory with gaps or overlaps torch makes another order, which is slow to ask for.
            order = _order(torch.empty_like(item).stride())
            break
        dense *= item.shape[axis]
    return () if order == tuple(range(item.dim())) else order


def _order(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def settle(values: list[Any], strides: Sequence[Strides | None], kind: str) -> bool:
    """Give each value on a device of this kind its strides, in the list; return whether any had others.

    None allows any strides; kernels of other kinds choose their own layouts.
    """
    changed = False
    for index, wanted in enumerate(strides):
        value = values[index]
        if wanted is not None and value.stride() != wanted and value.device.type == kind:
            values[index] = laid(value, wanted)
            changed = changed or values[index] is not value
    return changed


class _Sliced(Mapping[str, Any]):
    """The owner of a slice of the tensor `owner[key]`: a view of it under the same key.

    The view shares its version with the tensor, so that changes of either are seen in both, and is made anew only if
    the tensor or its memory is replaced.
    """

    def __init__(self, owner: Mapping[str, Any], key: str, part: Slice) -> None:
        self.owner, self.key, self.part = owner, key, part
        self._whole: Any = None
        self._view: Any = None
        self._memory = -1

    def __getitem__(self, key: str) -> torch.Tensor:
        whole = self.owner[key]
        memory = whole.data_ptr()
        if whole is not self._whole or memory != self._memory:
            with torch.inference_mode(False), torch.no_grad():
                view = whole.narrow(self.part.axis, self.part.start, self.part.length)
                self._view = view.requires_grad_(whole.requires_grad)
            self._whole, self._memory = whole, memory
        return self._view

    def __iter__(self) -> Iterator[str]:
        return iter((self.key,))

    def __len__(self) -> int:
        return 1


_known: weakref.WeakValueDictionary[tuple[int, str, Slice], _Sliced] = weakref.WeakValueDictionary()


def sliced(owner: Mapping[str, Any], key: str, part: Slice) -> Mapping[str, Any]:
    """Return the owner of a slice of `owner[key]`, always the same one, by which programs recognise the same state."""
    return _known.setdefault((id(owner), key, part), _Sliced(owner, key, part))
