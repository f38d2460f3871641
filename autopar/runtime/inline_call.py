"""A program of one lane as a plain function, called in the caller's thread."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from threading import RLock
from typing import Any

import torch

from ..capture.autocast import anywhere
from ..ir.program import Piece, Step, reads
from . import thread_state
from .bind_program import Assembly, LaneFunction
from .kernels import Kernel
from .lane_threads import failure


class InlineCall:
    """The code of a program with one lane, which runs in the caller's thread and on its streams, and that
    transfers and keeps nothing, and writes back at most its updates of state.

    Call it on a tensor for each of `names`: the graph's inputs, then the current state, read or written. It computes
    with exactly these tensors, and writes to them once all tasks are done. Calls are serialised by `lock`. Raises
    RunError if a task fails, like the executor.
    """

    def __init__(self, assembly: Assembly, function: LaneFunction, lock: RLock) -> None:
        program, layout = assembly.program, assembly.layout
        self._assembly, self._function, self.lock = assembly, function, lock
        (self._lane,) = assembly.lanes
        fed = tuple(program.buffer[name].value for name in layout.fed)
        names = [*assembly.graph.inputs, *fed]
        self._taken = len(names)
        written = [target for _, target in program.updates if target not in names]
        self.names = (*names, *written)
        read = set(program.outputs).union(*(_read(step, assembly.kernels) for _, step in program.steps()))
        self._state = [
            assembly.captured.state[name] if buffer in read else None for name, buffer in zip(fed, layout.fed)
        ]
        self._state += [assembly.captured.state[name] for name in written]
        self._folded = not any(self._state)
        self._updates = [(layout.slots[name], self.names.index(target)) for name, target in program.updates]
        self._blank = (*(None,) * (layout.size - self._taken - 1), assembly.captured.sizes)
        given = {name: at for at, name in enumerate(assembly.graph.inputs)}
        self._given = [
            (given[buffer.value], assembly.place(buffer.name))
            for buffer in program.buffers
            if buffer.kind == "given" and buffer.value in given
        ]
        self._results = chosen([layout.slots[name] for name in program.outputs])

    def resized(self, sizes: tuple[float, ...]) -> InlineCall:
        """Return the same function for calls with other sizes."""
        made = copy.copy(self)
        made._blank = (*self._blank[:-1], sizes)
        return made

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Return True if the inputs are on the devices where the program reads them."""
        return all(inputs[at].device == device for at, device in self._given)

    def state(self) -> Sequence[Any]:
        """Return the current state; None for state that kernels have folded."""
        if self._folded:
            return self._state
        return [place and place[0][place[1]] for place in self._state]

    def serve(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one call with the current state, on inputs that are where the program reads them."""
        return self([*inputs, *(self._state if self._folded else self.state())])

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run one call."""
        function = self._function
        with self.lock:
            slots = [*(tensors[: self._taken] if self._updates else tensors), *self._blank]
            try:
                if torch.is_grad_enabled() or anywhere():
                    with contextlib.ExitStack() as stack:
                        thread_state.enter(stack, False, self._assembly.types)
                        function(slots, None)
                else:
                    function(slots, None)
            except BaseException as error:
                shown = failure(self._assembly, self._lane, error, True)
                if shown is error:
                    raise
                raise shown from error
            if self._updates:
                self._write_back(slots, tensors)
            return list(self._results(slots))

    def _write_back(self, slots: Sequence[Any], tensors: Sequence[Any]) -> None:
        with torch.no_grad() if torch.is_grad_enabled() else contextlib.nullcontext():
            for slot, position in self._updates:
                if tensors[position] is not slots[slot]:
                    tensors[position].copy_(slots[slot])


def _read(step: Step, kernels: Mapping[str, Kernel]) -> Sequence[str]:
    """Return the buffers whose tensors a step receives."""
    if isinstance(step, Piece):
        return [step.reads[position] for position in kernels[step.tasks[0]].takes]
    return reads(step)


def chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that selects the items at these positions."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
