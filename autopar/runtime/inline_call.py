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
from .precomputed import Precomputed


class InlineCall:
    """The code of a program with one lane, which runs in the caller's thread and on its streams, and that
    transfers, keeps and writes back nothing.

    Call it on a tensor for each of `names`: the graph's inputs, then the current state. It computes with exactly these
    tensors. Calls are serialised by `lock`. Raises RunError if a task fails, like the executor.
    """

    def __init__(self, assembly: Assembly, function: LaneFunction, lock: RLock) -> None:
        program, layout = assembly.program, assembly.layout
        self._assembly, self._function, self.lock = assembly, function, lock
        (self._lane,) = assembly.lanes
        fed = tuple(program.buffer[name].value for name in layout.fed)
        self.names = (*assembly.graph.inputs, *fed)
        read = set(program.outputs).union(*(_read(step, assembly.kernels) for _, step in program.steps()))
        self._state = [
            assembly.captured.state[name] if buffer in read else None for name, buffer in zip(fed, layout.fed)
        ]
        self._folded = not any(self._state)
        self._blank = (*(None,) * (layout.size - len(self.names) - 1), assembly.captured.sizes)
        self._constants: Precomputed | None = None
        if assembly.constants.kept:
            self._constants = Precomputed(assembly, assembly.lanes[self._lane], self._blank)
        self._results = chosen([layout.slots[name] for name in program.outputs])

    def resized(self, sizes: tuple[float, ...]) -> InlineCall:
        """Return the same function for calls with other sizes."""
        made = copy.copy(self)
        made._blank = (*self._blank[:-1], sizes)
        made._constants = self._constants and self._constants.resized(made._blank)
        return made

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Return True if the inputs are on the devices where the program reads them."""
        place, given = self._assembly.place, dict(zip(self._assembly.graph.inputs, inputs))
        read = (buffer for buffer in self._assembly.program.buffers if buffer.kind == "given")
        return all(given[each.value].device == place(each.name) for each in read if each.value in given)

    def state(self) -> Sequence[Any]:
        """Return the current state; None for state that kernels have folded."""
        if self._folded:
            return self._state
        return [place and place[0][place[1]] for place in self._state]

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run one call."""
        function, blank = self._function, self._blank
        with self.lock:
            constants = self._constants
            served = constants is not None and constants.serve()
            if constants is not None and served:
                function, blank = constants.function, constants.blank
            slots = [*tensors, *blank]
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
            results = list(self._results(slots))
            if constants is not None and served and not constants.apart(results):
                self._constants = None
        return results


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
