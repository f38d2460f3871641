"""Result of a capture, `Captured`, and the strides that its outputs are to have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..ir.graph import Graph
from .sliced import sliced


@dataclass(frozen=True)
class Captured:
    """A graph and what ties it to the live model.

    The tensor of a state value is `owner[key]` with `state[value] = (owner, key)`: the module's own dict, so
    that an optimizer step or `load_state_dict` is seen at the next call. `calls` holds targets that are no
    torch operator. `flatten(args)` gives tensors in the order of `graph.inputs`; `rebuild(values)`
    the user's structure from values in the order of `graph.outputs`.
    `home` is the device the call comes from. `same` pairs the index of an output with the input or state that eager
    returned in that place, the very object. `strides` are those that eager gives each output, as fake tensors have
    them (None: whatever comes out of the graph); a check that sees others puts them there. `alike` says of each output
    whether fake tensors have the same ones in the graph.

    A graph that was differentiated has `tangents`, (input value, index of the output whose gradient it is), among
    its inputs after those of the call, and `gradients`, (input or state value, its gradient), after its outputs,
    unless the graph updates weights with them; what has no gradient is not among them. `flatten` and `rebuild` are
    still of the call alone.
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

    def kernels_trusted(self) -> Captured:
        """For a program that neither copies nor rejoins: outputs as its kernels make them, who are eager's, where the
        graph has eager's strides. Fake tensors do not always know them (`roll`, `batch_norm`)."""
        strides = [None if same else wanted for wanted, same in zip(self.strides, self.alike)]
        return replace(self, strides=strides)

    def with_slices(self, graph: Graph) -> Captured:
        """For a rewritten graph, of which some state is part of this one's."""
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
"""Bytes of gaps that are made again, or as many as the elements take where that is more: what eager shows of a large
tensor as a view, a copy has without the rest of it."""


def strides_of(item: Any) -> Strides | None:
    """The strides of a tensor; None for a value that has none."""
    strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
    return tuple(item.stride()) if strided else None


def fitting(strides: Sequence[Strides | None], shapes: Sequence[Sequence[int]]) -> list[Strides | None]:
    """The strides that have as many axes as the shapes, None for others: torch 2.11 traces the last states of an LSTM
    with an axis too many."""
    return [own if own and len(own) == len(shape) else None for own, shape in zip(strides, shapes)]


def alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """True if a tensor has these strides wherever strides say anything: along axes of more than one element."""
    found = tensor.stride()
    if found == strides or tensor.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, found, strides))


def laid(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with these strides, itself where it has them. Axes of stride 0 are expanded; in the place of large
    gaps (`GAPS`) the copy is dense, its axes in the same order."""
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


def settle(values: list[Any], strides: Sequence[Strides | None], kind: str) -> bool:
    """Give each value on a device of this kind its strides, in place of the list; whether any had others. None says
    nothing of a value, and kernels of another kind lay out their results as they do."""
    changed = False
    for index, wanted in enumerate(strides):
        value = values[index]
        if wanted is not None and value.stride() != wanted and value.device.type == kind:
            values[index] = laid(value, wanted)
            changed = changed or values[index] is not value
    return changed
