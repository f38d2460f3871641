"""`Captured`, the result of a capture; the strides of its outputs; slices of the user's own parameters that
follow their changes (`sliced`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..ir.graph import Graph, Slice


@dataclass(frozen=True)
class Captured:
    """A graph and its links to the live model.

    state: (owner, key) of each state value; its tensor is `owner[key]`. The owner is the module's own dict,
    so the next call sees an optimizer step or `load_state_dict`.
    calls: targets that are not torch operators.
    flatten(args): tensors in the order of `graph.inputs`.
    rebuild(values): the user's structure from values in the order of `graph.outputs`.
    home: device of the call.
    same: (index of an output, the input or state value that eager returns there itself).
    strides: those of each output in eager, by fake tensors (None: any); a call restores them.
    alike: for each output, whether fake tensors have equal strides in the graph.
    tangents: (input value, index of the output whose gradient it is) of a differentiated graph, after the call's
    inputs.
    gradients: (input or state value, its gradient), after the outputs, unless the graph updates weights with them.
    open: the symbol of each open number of the graph, by place; None if it holds for one call's sizes only.
    sizes: the numbers for these symbols in the call.
    reread: state that eager's backward reads itself, and not by a view or a copy made in the forward.

    `flatten` and `rebuild` handle the call without tangents and gradients.
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
    open: tuple[torch.SymInt | torch.SymFloat, ...] | None = None
    sizes: tuple[float, ...] = ()
    reread: frozenset[str] = frozenset()

    def without_redundant_strides(self) -> Captured:
        """Return the capture without the strides that the kernels of a program without transfers and rejoins give by
        themselves, wherever the graph has them; fake tensors do not always know these (`roll`, `batch_norm`)."""
        strides = [None if same else wanted for wanted, same in zip(self.strides, self.alike)]
        return replace(self, strides=strides)

    def with_slices(self, graph: Graph) -> Captured:
        """Return the capture with a rewritten graph, in which some states are slices of this one's."""
        parts = {value.name: value.slice for value in graph.values if value.slice}
        slices = {
            name: (sliced(*self.state[part.of], part), self.state[part.of][1]) for name, part in parts.items()
        }
        return replace(self, state={**self.state, **slices}) if slices else self

    @cached_property
    def stateful(self) -> bool:
        """True if a call changes something that the next call reads: a buffer, a generator's state."""
        return bool(self.graph.mutated) or any(task.random for task in self.graph.tasks)


Strides = tuple[int, ...]
GAPS = 1 << 20
"""Limit on the bytes of gaps that a copy reproduces (or the bytes of its elements, if more): a copy of a
small view need not be as large as the viewed tensor."""


def strides_of(item: Any) -> Strides | None:
    """Return the strides of a tensor; None for other values."""
    strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
    return tuple(item.stride()) if strided else None


def reading(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the address of the memory of a tensor and what decides how it is read; () for layouts without strides.

    `tensor.data = …` may change any of this and leaves no other trace.
    """
    if tensor.layout is not torch.strided:
        return ()
    bits = tensor.is_neg(), tensor.is_conj()
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, *bits


def alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Return True if a tensor has these strides along all axes of more than one element."""
    actual = tensor.stride()
    if actual == strides or tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, actual, strides))


def laid(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a copy of the tensor with these strides; the tensor itself if it has them.

    Axes of stride 0 are expanded. If gaps are large (`GAPS`), the copy is dense, its axes in the same order.
    """
    if alike(tensor, strides):
        return tensor
    unexpanded = tensor
    for axis, step in enumerate(strides):
        if step == 0:
            unexpanded = unexpanded.narrow(axis, 0, 1)
    span = 1 + sum((size - 1) * step for size, step in zip(unexpanded.shape, strides))
    template = torch.empty_strided(unexpanded.shape, strides, dtype=unexpanded.dtype, device="meta")
    if (span - unexpanded.numel()) * unexpanded.element_size() > max(GAPS, unexpanded.nbytes):
        template = torch.empty_like(template)
    template = torch.empty_strided(
        unexpanded.shape, template.stride(), dtype=unexpanded.dtype, device=unexpanded.device
    )
    return template.copy_(unexpanded).expand(tensor.shape)


def memory_order(item: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor from the slowest to the fastest; empty if they are in order."""
    if item.layout is not torch.strided or item.is_contiguous():
        return ()
    order = _order(item.stride())
    dense = 1
    for axis in reversed(order):
        if item.shape[axis] != 1 and item.stride(axis) != dense:
            # For memory with gaps or overlaps, only torch knows the order of a copy, and asking it is slow.
            order = _order(torch.empty_like(item).stride())
            break
        dense *= item.shape[axis]
    return () if order == tuple(range(item.dim())) else order


def _order(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def restore_strides(values: list[Any], strides: Sequence[Strides | None], kind: str) -> bool:
    """Replace each value on a device of this kind that has other strides; return whether any had.

    None allows any strides. Kernels for other kinds of devices choose their own layouts.
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

    The view shares its version counter with the tensor, so each shows changes of the other. It is made anew
    only if the tensor, its memory or how this is read is replaced.
    """

    def __init__(self, owner: Mapping[str, Any], key: str, part: Slice) -> None:
        self.owner, self.key, self.part = owner, key, part
        self._whole: Any = None
        self._view: Any = None
        self._reading: tuple[Any, ...] = ()

    def __getitem__(self, key: str) -> torch.Tensor:
        whole = self.owner[key]
        read = reading(whole)
        if whole is not self._whole or read != self._reading:
            with torch.inference_mode(False), torch.no_grad():
                view = whole.narrow(self.part.axis, self.part.start, self.part.length)
                self._view = view.requires_grad_(whole.requires_grad)
            self._whole, self._reading = whole, read
        return self._view

    def __iter__(self) -> Iterator[str]:
        return iter((self.key,))

    def __len__(self) -> int:
        return 1


_known: weakref.WeakValueDictionary[tuple[int, str, Slice], _Sliced] = weakref.WeakValueDictionary()


def sliced(owner: Mapping[str, Any], key: str, part: Slice) -> Mapping[str, Any]:
    """Return the one owner of a slice of `owner[key]`, by which programs recognise the same state."""
    return _known.setdefault((id(owner), key, part), _Sliced(owner, key, part))
