"""Result of a capture: `Captured`."""

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
