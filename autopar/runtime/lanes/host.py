"""Lane backend whose work has ended when the call returns: a CPU worker or an emulated
queue.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...ir.program import Copy, Free, Lane, Program, Wait
from ..record import CallRecord, LaneRecorder
from ..worker import Gates


class HostLane:
    """A lane of CPU tensors. `device` is where its tensors are, `place` gives the same of a buffer by its name.
    `streamed` lanes have a stream of their own, other than the caller's.
    """

    streamed = False

    def __init__(
        self, lane: Lane, program: Program, device: torch.device, place: Callable[[str], torch.device]
    ) -> None:
        self.lane, self.program, self.device, self.place = lane, program, device, place
        self.names: dict[str, Any] = {"clone": clone, "move": move}
        self.first: tuple[str, ...] = ()
        self.last: tuple[str, ...] = ()
        # What is freed at the end streams may still be copying. They copy from pinned memory, which its allocator keeps
        # until they are done.
        end = itertools.takewhile(lambda step: isinstance(step, Wait | Free), reversed(lane.steps))
        self._frees = frozenset(step.event for step in end if isinstance(step, Wait))

    def wait(self, event: str, gates: Gates, signals: Mapping[str, Any]) -> list[str]:
        """Lines of a Wait; `signals` are the torch events of those that accelerators record."""
        lines = [gates.wait(event)]
        if event in signals and event not in self._frees:
            self.names[f"e{gates.number[event]}"] = signals[event]
            lines.append(f"e{gates.number[event]}.synchronize()")
        return lines

    def record(self, event: str, gates: Gates, signals: Mapping[str, Any]) -> list[str]:  # noqa: ARG002
        """Lines of a Record; only streams have `signals` to give."""
        return gates.record(event)

    def copy(self, step: Copy, source: str) -> str:
        """The expression that copies."""
        target = self.place(step.dst)
        if self.place(step.src) == target:
            return f"clone({source})"
        self.names[f"to_{target.type}"] = target
        return f"move({source}, to_{target.type})"

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function by which the lane computes a task whose operator is `function`."""
        return function

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Make the current thread the lane's, until `stack` closes."""

    def drain(self) -> None:
        """Block until everything the lane was given has ended."""

    def recorder(self, recording: CallRecord) -> LaneRecorder:
        """Recorder of the start and end of each step of the lane in one call."""
        return LaneRecorder(self.lane, recording)


def apart(made: Any, *others: Any) -> Any:
    """The value that a task made, cloned if it lies in the memory of one of these others though the graph says not."""
    if isinstance(made, torch.Tensor) and made.layout is torch.strided and made.numel():
        memory = made.untyped_storage().data_ptr()
        for other in others:
            strided = isinstance(other, torch.Tensor) and other.layout is torch.strided
            if strided and other.untyped_storage().data_ptr() == memory:
                return made.clone()
    return made


def clone(value: Any) -> Any:
    """A tensor in fresh storage; a value that is no tensor as it is."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def move(value: Any, device: torch.device) -> Any:
    """A tensor on another device, there when this returns; a value that is no tensor as it is."""
    return value.to(device) if isinstance(value, torch.Tensor) else value
