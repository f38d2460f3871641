"""A program of one lane as a plain function, called in the caller's thread, which computes its constants once."""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
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
from .lanes.host import HostLane

LIMIT = 16 << 20
"""Limit on the bytes that the constants of one program take, for all sets of sizes together."""
CALLS = 2
"""The call that computes the constants: where sizes or numbers keep changing, most have no second call."""


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
        self._constants: _Precomputed | None = None
        if assembly.layout.kept:
            self._constants = _Precomputed(assembly, assembly.lanes[self._lane], self._blank)
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
        made._constants = self._constants and self._constants.resized(made._blank)
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
        function, blank = self._function, self._blank
        with self.lock:
            constants = self._constants
            served = constants is not None and constants.serve()
            if constants is not None and served:
                function, blank = constants.function, constants.blank
            slots = [*(tensors[: self._taken] if self._updates else tensors), *blank]
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
            results = list(self._results(slots))
            if constants is not None and served and not constants.apart(results):
                self._constants = None
        return results

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


class _Precomputed:
    """The constants (`layout`) for calls of one set of sizes, computed once and kept from call to call.

    function: the steps that are not constant. blank: what fills the slots after the tensors of a call, with the
    constants among them. Use both if `serve()` is True, under the lock that all sizes of the program share.

    On an accelerator they are read only by calls on the stream that made them, which therefore need not wait, and
    not by calls that a graph records, since the graph may outlive them.
    """

    def __init__(self, assembly: Assembly, lane: HostLane, blank: Sequence[Any]) -> None:
        self._assembly, self._lane, self._bare = assembly, lane, tuple(blank)
        self.blank: tuple[Any, ...] = ()
        self.bytes = 0
        self._calls = 0
        self._apart = False
        self._stream: torch.Stream | None = None
        self._kept: weakref.WeakSet[_Precomputed] = weakref.WeakSet()
        """Those of all sets of sizes that have constants."""
        self._functions: list[LaneFunction] = []
        """The function of the constant and that of the other steps, once they are generated."""
        module = torch.get_device_module(lane.device) if lane.device.type != "cpu" else None
        self._recording: Callable[[], bool] | None = getattr(module, "is_current_stream_capturing", None)

    def resized(self, blank: Sequence[Any]) -> _Precomputed:
        """Return the same for calls of other sizes."""
        made = _Precomputed(self._assembly, self._lane, blank)
        made._kept, made._functions = self._kept, self._functions
        return made

    @property
    def function(self) -> LaneFunction:
        """The steps that are not constant."""
        return self._functions[1]

    def serve(self) -> bool:
        """Return True if the constants serve a call, which may compute them now."""
        if self.blank:
            return self._stream is None or (self._stream == self._current() and not self._recorded())
        if self._recorded():
            return False
        self._calls += 1
        return self._calls == CALLS and self._compute()

    def _current(self) -> torch.Stream | None:
        device = self._lane.device
        return None if device.type == "cpu" else torch.accelerator.current_stream(device)

    def _recorded(self) -> bool:
        return self._recording is not None and self._recording()

    def _compute(self) -> bool:
        """Compute the constants; return False if there is no room for them."""
        assembly, name = self._assembly, self._lane.lane.name
        if not self._functions:
            parts: tuple[Any, ...] = "constant", "varying"
            # Both or neither, also if the user interrupts this.
            self._functions += [assembly.function(name, False, assembly.gates, part) for part in parts]
        given = assembly.layout.size - len(self._bare)
        slots = [*(None,) * given, *self._bare]
        try:
            with contextlib.ExitStack() as stack:
                thread_state.enter(stack, False, assembly.types)
                self._functions[0](slots, None)
        except Exception:
            # The same call with all steps succeeds, or names the task that fails.
            return False
        made = [slots[assembly.layout.slots[name]] for name in assembly.layout.kept]
        if any(type(each) is not torch.Tensor or each.layout is not torch.strided for each in made):
            return False
        self.bytes = sum({_memory(each): each.untyped_storage().nbytes() for each in made}.values())
        if self.bytes + sum(each.bytes for each in self._kept) > self._room():
            return False
        self._kept.add(self)
        self._stream, self.blank = self._current(), tuple(slots[given:])
        return True

    def _room(self) -> float:
        """Return the bytes that the constants of all sets of sizes may take."""
        device, program = self._lane.lane.device, self._assembly.program
        return min(LIMIT, dict(program.caps).get(device, math.inf) - self._assembly.plan.peaks.get(device, 0))

    def apart(self, results: Sequence[Any]) -> bool:
        """Return False if a result of the first call that they serve shares memory with one, which the graph does not
        know: the caller may write to it."""
        if not self._apart:
            own = {_memory(item) for item in self.blank if isinstance(item, torch.Tensor)}
            strided = (
                item for item in results if isinstance(item, torch.Tensor) and item.layout is torch.strided
            )
            self._apart = own.isdisjoint(_memory(item) for item in strided if item.numel())
        return self._apart


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that selects the items at these positions."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
