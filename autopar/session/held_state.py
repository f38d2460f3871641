"""State that a backward reads, as its forward read it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from ..capture import Captured
from ..errors import RunError
from ..ir.graph import Graph
from ..runtime.autograd_bridge import placed

Held: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A state that a forward has read, and an alias that keeps its memory."""

_ABSENT = object()


class HeldState:
    """The weights and buffers that the backward of a joint graph reads.

    exclusive: the context in which state of the model may be replaced for a moment.
    """

    def __init__(
        self, captured: Captured, backward: Graph, exclusive: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._name, self._exclusive = captured.graph.name, exclusive
        # A slice of a weight is a view of the tensor that holds the weight.
        read = [
            value
            for name in backward.state
            if name in captured.state and not (value := backward.value[name]).slice
        ]
        self._slots = [captured.state[value.name] for value in read]
        self._reread = {at: value.path for at, value in enumerate(read) if value.name in captured.reread}
        """Paths of state that eager's backward reads itself, by position."""

    def taken(self) -> list[Held]:
        """Return the state that a forward has just read."""
        return [(owner[key], owner[key].detach()) for owner, key in self._slots]

    @contextlib.contextmanager
    def restored(self, held: Sequence[Held]) -> Iterator[None]:
        """Within the block, let the backward read the state of its forward, even if other tensors have taken its place,
        as at the end of `torch.func.functional_call`, or other memory (`.data = …`).

        Raises RunError if eager would read the other memory.
        """
        tensors = [self._as_read(at, *each) for at, each in enumerate(held)]
        slots: Any = self._slots
        if all(owner.get(key) is tensor for (owner, key), tensor in zip(slots, tensors)):
            yield
            return
        with self._exclusive():
            replaced = [(owner, key, owner.get(key, _ABSENT)) for owner, key in slots]
            try:
                for (owner, key), tensor in zip(slots, tensors):
                    owner[key] = tensor
                yield
            finally:
                for owner, key, tensor in replaced:
                    owner[key] = tensor
                    if tensor is _ABSENT:
                        del owner[key]

    def _as_read(self, at: int, tensor: torch.Tensor, alias: torch.Tensor) -> torch.Tensor:
        if placed(tensor) == placed(alias):
            return tensor
        if at not in self._reread:
            return alias
        raise RunError(
            f"{self._name}: the memory of {self._reread[at]} was replaced between a forward and its backward "
            "(`.data = …`), and eager would combine values of the old memory with gradients of the new one; call "
            "backward() before, or replace the parameter itself"
        )
