"""The state that one program reads or keeps, in the session's pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..ir.graph import Graph
from ..ir.program import Program
from .flat_transfer import pieces
from .replicas import Copy, Master, Replicas
from .slots import Layout

if TYPE_CHECKING:
    from ..capture.captured import Captured


class Residents:
    """State in the order of `layout.fed`: at home the tensor itself, else its copy. `place`: actual device of a
    buffer."""

    def __init__(
        self,
        pool: Replicas,
        captured: Captured,
        program: Program,
        graph: Graph,
        layout: Layout,
        place: Callable[[str], torch.device],
    ) -> None:
        self.pool = pool

        def master(state: str) -> Master:
            return pool.master(state, *captured.state[state])

        def copy(buffer: str, state: str) -> Copy:
            return pool.copy(master(state), program.buffer[buffer].device, place(buffer))

        self._masters: dict[Master, None] = {}
        self._copies: dict[Copy, None] = {}
        self._fed: list[Master | Copy] = []
        for name in layout.fed:
            buffer = program.buffer[name]
            owner, key = captured.state[buffer.value]
            # A machine may lack the device a model is on; its host then stands for it.
            if buffer.kind == "resident" or owner[key].device != place(name):
                away = copy(name, buffer.value)
                self._copies[away] = None
                self._fed.append(away)
            else:
                self._fed.append(master(buffer.value))
            self._masters[master(buffer.value)] = None
        self._changing: list[tuple[Copy, int]] = []
        self._carried: list[tuple[Copy, int]] = []
        self._flat: list[tuple[int, list[Master], list[Copy | None]]] = []
        flat: dict[str, dict[str, Copy]] = {}
        for name, state in program.keeps:
            if state in graph.pieces:
                flat.setdefault(name, {})[state] = copy(name, state)
            else:
                kept = self._changing if state in graph.kept else self._carried
                kept.append((copy(name, state), layout.slots[name]))
            self._masters[master(state)] = None
        for name, copies in flat.items():
            states = [state for made, state in graph.updates if made == program.buffer[name].value]
            masters = [master(state) for state in states]
            self._flat.append((layout.slots[name], masters, [copies.get(state) for state in states]))
        self._replaced = [copy for copy, _ in self._changing]
        self._stamps: list[int] = []

    @property
    def at_home(self) -> bool:
        """True if it reads state only at home, and keeps none."""
        return not (self._copies or self._changing or self._carried or self._flat)

    def fill(self) -> list[Any]:
        """Return the tensors of the fed buffers, with copies up to date."""
        tensors, self._stamps = self.pool.fill(self._fed, self._masters, self._copies, self._replaced)
        return tensors

    def current(self) -> bool:
        """Return True if every copy that the program reads, or sends and keeps, is up to date."""
        return self.pool.current(self._masters, (*self._copies, *self._replaced))

    def swap(self, slots: Sequence[Any]) -> None:
        """Keep the copies sent by a call, once everything it updates has been written."""
        if self._changing or self._carried or self._flat:
            changing = [(c, slots[slot], stamp) for (c, slot), stamp in zip(self._changing, self._stamps)]
            carried = [(c, slots[slot]) for c, slot in self._carried]
            for slot, masters, copies in self._flat:
                with torch.no_grad():
                    views = pieces(slots[slot], [master.owner[master.key] for master in masters])
                carried += [(c, view) for c, view in zip(copies, views) if c is not None]
            self.pool.keep(changing, carried)
