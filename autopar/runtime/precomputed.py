"""The constants of a program (`constants`), computed once for each set of sizes and kept from call to call."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import thread_state
from .bind_program import Assembly, LaneFunction
from .lanes.host import HostLane

LIMIT = 16 << 20
"""Limit on the bytes that the constants of one program take, for all sets of sizes together."""
CALLS = 2
"""The call that computes the constants: where sizes or numbers keep changing, most have no second call."""


class Precomputed:
    """The constants for calls of one set of sizes.

    function: the steps that are not constant. blank: what fills the slots after the tensors of a call, with the
    constants among them. Use both if `serve()` is True, under the lock that all sizes of the program share.

    On an accelerator they are read only by calls on the stream that made them, which therefore need not wait, and
    not by calls that a graph records, since the graph may outlive them.
    """

    def __init__(self, assembly: Assembly, lane: HostLane, blank: Sequence[Any]) -> None:
        self._assembly, self._lane, self._bare = assembly, lane, tuple(blank)
        self._given = assembly.layout.size - len(self._bare)
        self._begin()
        self._kept: weakref.WeakSet[Precomputed] = weakref.WeakSet()
        """Those of all sets of sizes that have constants."""
        self._functions: list[LaneFunction] = []
        """The function of the constant and that of the other steps, once they are generated."""
        module = torch.get_device_module(lane.device) if lane.device.type != "cpu" else None
        self._recording: Callable[[], bool] | None = getattr(module, "is_current_stream_capturing", None)

    def _begin(self) -> None:
        self.blank: tuple[Any, ...] = ()
        self.bytes = 0
        self._calls = 0
        self._apart = False
        self._stream: torch.Stream | None = None

    def resized(self, blank: Sequence[Any]) -> Precomputed:
        """Return the same for calls of other sizes."""
        made = copy.copy(self)
        made._bare = tuple(blank)
        made._begin()
        return made

    @property
    def function(self) -> LaneFunction:
        """The steps that are not constant."""
        return self._functions[1]

    def serve(self) -> bool | None:
        """Return True if the constants serve a call, which may compute them now; None if they never will."""
        if not self.blank:
            self._calls += 1
            if self._calls < CALLS or self._recorded():
                return False
            return self._compute() or None
        return self._stream is None or (self._stream == self._current() and not self._recorded())

    def _current(self) -> torch.Stream | None:
        device = self._lane.device
        return None if device.type == "cpu" else torch.accelerator.current_stream(device)

    def _recorded(self) -> bool:
        return self._recording is not None and self._recording()

    def _compute(self) -> bool:
        """Compute the constants; return False if there is no room for them."""
        assembly, name = self._assembly, self._lane.lane.name
        if not self._functions:
            for part in ("constant", "varying"):
                self._functions.append(assembly.function(name, False, assembly.gates, part))
        slots = [*(None,) * self._given, *self._bare]
        try:
            with contextlib.ExitStack() as stack:
                thread_state.enter(stack, False, assembly.types)
                self._functions[0](slots, None)
        except Exception:
            # The same call with all steps succeeds, or names the task that fails.
            return False
        made = [slots[assembly.layout.slots[name]] for name in assembly.constants.kept]
        if any(type(each) is not torch.Tensor or each.layout is not torch.strided for each in made):
            return False
        memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in made}
        self.bytes = sum(memory.values())
        if not self._fits(self.bytes + sum(each.bytes for each in self._kept)):
            return False
        self._kept.add(self)
        self._stream, self.blank = self._current(), tuple(slots[self._given :])
        return True

    def _fits(self, taken: int) -> bool:
        peaks, caps = self._assembly.plan.peaks, dict(self._assembly.program.caps)
        device = self._lane.lane.device
        return taken <= LIMIT and (device not in caps or peaks.get(device, 0) + taken <= caps[device])

    def apart(self, results: Sequence[Any]) -> bool:
        """Return False if a result of the first call that they serve shares memory with one, which the graph does not
        know: the caller may write to it."""
        if not self._apart:
            own = {item.untyped_storage().data_ptr() for item in self.blank if isinstance(item, torch.Tensor)}
            strided = [
                item for item in results if isinstance(item, torch.Tensor) and item.layout is torch.strided
            ]
            self._apart = own.isdisjoint(
                item.untyped_storage().data_ptr() for item in strided if item.numel()
            )
        return self._apart
