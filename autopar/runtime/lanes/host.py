"""Synchronous lane backend: a CPU worker or an emulated queue, whose work has ended when the call returns."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch

from ...ir.program import Copy, Free, Lane, Program, Wait
from ..record import CallRecord, LaneRecorder


class HostLane:
    """A lane of CPU tensors. `device`: device of its tensors. `place`: device of a buffer, by name. `streamed` lanes
    have their own stream, other than the caller's."""

    streamed = False

    def __init__(
        self, lane: Lane, program: Program, device: torch.device, place: Callable[[str], torch.device]
    ) -> None:
        self.lane, self.program, self.device, self.place = lane, program, device, place
        self.names: dict[str, Any] = {"clone": clone, "move": move}
        self.first: tuple[str, ...] = ()
        self.last: tuple[str, ...] = ()
        # The lane need not wait for streams before it frees buffers at its end: they copy from pinned memory,
        # which its allocator keeps until they are done.
        end = itertools.takewhile(lambda step: isinstance(step, Wait | Free), reversed(lane.steps))
        self._frees = frozenset(step.event for step in end if isinstance(step, Wait))

    def wait(self, event: str, signal: str) -> list[str]:
        """Return lines that follow the gate of an event which a stream records; `signal`: name of the torch event."""
        return [] if event in self._frees else [f"{signal}.synchronize()"]

    def copy(self, step: Copy, source: str) -> str:
        """Return the expression of a copy."""
        target = self.place(step.dst)
        if self.place(step.src) == target:
            return f"clone({source})"
        self.names[f"to_{target.type}"] = target
        return f"move({source}, to_{target.type})"

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that computes a task whose operator is `function`; lanes of other kinds replace it."""
        return function

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Prepare the current thread for the lane, until `stack` closes."""

    def drain(self) -> None:
        """Block until all work of the lane has ended."""

    def recorder(self, recording: CallRecord) -> LaneRecorder:
        """Return a recorder of start and end of each step of the lane in one call."""
        return LaneRecorder(self.lane, recording)


def clone_aliased(output: Any, *others: Any) -> Any:
    """Return a task's output, cloned if it shares memory with one of the other values although the graph does not say
    so."""
    if isinstance(output, torch.Tensor) and output.layout is torch.strided and output.numel():
        memory = output.untyped_storage().data_ptr()
        for other in others:
            strided = isinstance(other, torch.Tensor) and other.layout is torch.strided
            if strided and other.untyped_storage().data_ptr() == memory:
                return output.clone()
    return output


def clone(value: Any) -> Any:
    """Return a tensor in fresh storage; other values unchanged."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def move(value: Any, device: torch.device) -> Any:
    """Return a tensor copied synchronously to another device; other values unchanged."""
    return value.to(device) if isinstance(value, torch.Tensor) else value
