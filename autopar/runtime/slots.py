"""Storage during a call: of each buffer, a local variable of one lane's code or a slot shared by lanes; and of the
state that a program reads or keeps, copies in the session's pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..ir.graph import Graph
from ..ir.program import Free, Program, Record, Wait, makes, reads
from .flat_transfer import pieces
from .replicas import Copy, Master, Replicas

if TYPE_CHECKING:
    from ..capture.captured import Captured


@dataclass(frozen=True)
class Layout:
    """The storage of all buffers.

    slots: numbers of shared buffers: all inputs in order, then other buffers that exist before the call (`fed`), then
    shared made ones; a buffer without a slot is a local.
    drops: buffers that a lane drops after the step (lane, index).
    makers: lanes that make the buffers of a storage.
    """

    slots: dict[str, int]
    size: int
    fed: tuple[str, ...]
    drops: dict[tuple[str, int], tuple[str, ...]]
    makers: dict[str, set[str]]


def layout(program: Program, graph: Graph) -> Layout:
    """Lay out the buffers of a program of `graph`. Linear in its steps."""
    maker, freed, last, shared = _uses(program)
    results = frozenset(program.results)
    drops: dict[tuple[str, int], list[str]] = {}
    makers: dict[str, set[str]] = {}
    for buffer in program.buffers:
        name = buffer.name
        if name in maker:
            makers.setdefault(buffer.storage, set()).add(maker[name])
        if buffer.kind == "result" or name in results:
            shared.add(name)
        elif name in maker:
            # What nobody frees, a local outlives its last reader for nothing.
            end = freed.get(name) or (None if name in shared else last[name])
            if end:
                drops.setdefault(end, []).append(name)

    inputs = {name: position for position, name in enumerate(graph.inputs)}
    slots: dict[str, int] = {}
    fed: list[str] = []
    for buffer in program.buffers:
        if buffer.kind == "given" and buffer.value in inputs:
            slots[buffer.name] = inputs[buffer.value]
        elif buffer.kind in ("given", "resident"):
            slots[buffer.name] = len(inputs) + len(fed)
            fed.append(buffer.name)
    size = len(inputs) + len(fed)
    for buffer in program.buffers:
        if buffer.name not in slots and buffer.name in shared:
            slots[buffer.name] = size
            size += 1
    dropped = {where: tuple(names) for where, names in drops.items()}
    return Layout(slots, size, tuple(fed), dropped, makers)


def _uses(
    program: Program,
) -> tuple[dict[str, str], dict[str, tuple[str, int]], dict[str, tuple[str, int]], set[str]]:
    """Return the lane that makes each buffer, the step that frees it, its last use in that lane, and the shared
    buffers."""
    maker: dict[str, str] = {}
    freed: dict[str, tuple[str, int]] = {}
    last: dict[str, tuple[str, int]] = {}
    shared: set[str] = {*program.results}
    for lane in program.lanes:
        for index, step in enumerate(lane.steps):
            if isinstance(step, Free):
                freed[step.buffer] = (lane.name, index)
            for name in makes(step):
                maker[name] = lane.name
                last[name] = (lane.name, index)
    for lane in program.lanes:
        for index, step in enumerate(lane.steps):
            for name in reads(step):
                if maker.get(name) != lane.name:
                    shared.add(name)
                else:
                    last[name] = (lane.name, index)
    return maker, freed, last, shared


def events(program: Program, kind: type[Record] | type[Wait]) -> Iterator[tuple[str, str]]:
    """Yield (event, lane) of each step of `kind`."""
    for lane in program.lanes:
        for step in lane.steps:
            if isinstance(step, Record | Wait) and isinstance(step, kind):
                yield step.event, lane.name


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
