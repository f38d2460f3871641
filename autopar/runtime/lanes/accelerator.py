"""Lane backend of an accelerator: a `torch.Stream` and the host thread that feeds it.

A hand-off between lanes has two halves. The gate opens once the event has been recorded; then the stream (or,
on the CPU, the thread) waits for the event itself. `record_stream` is not needed: the lane that frees a
buffer also allocated it, and its stream has waited for the events of all readers before the last reference is
dropped, even if a view turns out to be a copy (`ir.program.Free`).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from ...costs.calibrate import pins_memory
from ...ir.program import Copy, Lane, Program
from ..record import CallRecord, LaneRecorder
from .host import HostLane

PINNED_LIMIT = 256 << 20
"""Limit on the bytes of a staged tensor: torch rounds pinned memory up to a power of two."""
CHUNK = 4 << 20
"""Bytes of a large tensor that are staged at a time: while one chunk is transferred, the next is being staged."""


@functools.cache
def stream(lane: str, device: torch.device) -> torch.Stream:  # noqa: ARG001 - the key of the cache
    """Return the stream of a lane on a device, one for the whole process.

    Streams come from a pool of 32 and each has its own memory, so all executors share them.
    """
    return torch.Stream(device=device)


class AcceleratorLane(HostLane):
    """A lane of an accelerator. If a program has no other lane and no copies, its lane is not `streamed` and uses the
    caller's stream, without hand-offs."""

    def __init__(
        self, lane: Lane, program: Program, device: torch.device, place: Callable[[str], torch.device]
    ) -> None:
        super().__init__(lane, program, device, place)
        copies = [step for step in lane.steps if isinstance(step, Copy)]
        results = frozenset(program.results)
        # The caller may read a result on the CPU, or write to an input it had pinned, as soon as the call
        # returns.
        host_ends = any(place(step.dst).type == "cpu" and step.dst in results for step in copies)
        roots = {step: program.buffer[program.buffer[step.src].storage] for step in copies}
        host_starts = any(
            place(step.src).type == "cpu" and root.kind == "given" for step, root in roots.items()
        )
        self._peers: tuple[torch.Stream, ...] = ()
        self.streamed = bool(copies) or sum(bool(other.steps) for other in program.lanes) > 1
        self._stream = stream(lane.name, device) if self.streamed else None
        self.names.update(to_host=to_host, to_device=to_device, device=device)
        if self._stream is None:
            return
        # torch copies between accelerators on the source's current stream, with a barrier between the streams
        # of both ends before and after. A separate stream for this is only faster.
        peers = {place(step.src) for step in copies if place(step.src).type != "cpu"} - {device}
        self._peers = tuple(stream(lane.name, peer) for peer in sorted(peers, key=str))
        self.names.update(
            stream=self._stream, wait_event=self._stream.wait_event, record_event=self._stream.record_event
        )
        self.first = ("for event in d.arrived: wait_event(event)",)
        self.last = ("d.ended.append(record_event())",)
        if host_ends or host_starts:
            self.last += ("stream.synchronize()",)

    def wait(self, event: str, signal: str) -> list[str]:  # noqa: ARG002
        """Return lines that make the stream wait for the torch event `signal`."""
        return [f"wait_event({signal})"]

    def copy(self, step: Copy, source: str) -> str:
        """Return the expression of a copy, through pinned memory if one end is the host."""
        if self.place(step.dst).type == "cpu":
            return f"to_host({source})"
        return f"to_device({source}, device)"

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Make the stream current in the thread, until `stack` closes."""
        if self._stream is None:
            return
        # Not `with stream`: the object remembers the stream before, and other threads use the same object.
        stack.callback(torch.accelerator.set_device_index, torch.accelerator.current_device_index())
        for queue in (*self._peers, self._stream):
            before = torch.accelerator.current_stream(queue.device)
            stack.callback(torch.accelerator.set_stream, before)
            torch.accelerator.set_stream(queue)

    def drain(self) -> None:
        """Block until the stream is idle."""
        (self._stream or torch.accelerator.current_stream(self.device)).synchronize()

    def recorder(self, recording: CallRecord) -> LaneRecorder:
        """Return a recorder of timing events for the steps of one call."""
        return _StreamRecorder(
            self.lane, recording, self._stream or torch.accelerator.current_stream(self.device)
        )


class _StreamRecorder(LaneRecorder):
    """Marks are timing events of the stream, relative to one whose time on the host's clock is known."""

    def __init__(self, lane: Lane, recording: CallRecord, queue: torch.Stream) -> None:
        super().__init__(lane, recording)
        self._queue = queue
        queue.synchronize()
        self._base = self.now()
        self._base.synchronize()
        self._base_at = time.perf_counter()

    def now(self) -> Any:
        """Record and return a timing event."""
        mark = torch.Event(device=self._queue.device, enable_timing=True)
        self._queue.record_event(mark)
        return mark

    def seconds(self, mark: Any, origin: float) -> float:
        """Return the seconds from `origin`, on the host's clock, to a mark."""
        mark.synchronize()
        return max(0.0, self._base_at - origin + self._base.elapsed_time(mark) / 1e3)


def arrivals(devices: tuple[torch.device, ...]) -> list[torch.Event]:
    """Return an event on the caller's current stream of each device, which happens once the stream's earlier work is
    done."""
    return [torch.accelerator.current_stream(device).record_event() for device in devices]


def leave(ended: list[torch.Event], results: list[Any], devices: tuple[torch.device, ...]) -> None:
    """Make the caller's streams wait for the lanes, and tell the allocator that results are used there from now on.

    Only results need `record_stream`: the program cannot know when the caller drops them.
    """
    for device in devices:
        queue = torch.accelerator.current_stream(device)
        for event in ended:
            queue.wait_event(event)
        for tensor in results:
            if isinstance(tensor, torch.Tensor) and tensor.device == device:
                tensor.record_stream(queue)


def to_host(value: Any) -> Any:
    """Copy a tensor to pinned memory, in stream order."""
    if not isinstance(value, torch.Tensor):
        return value
    # After a copy, torch would conjugate or negate on the host at once, without waiting for the copy.
    value = value.resolve_conj().resolve_neg()
    if value.layout is not torch.strided or value.nbytes > PINNED_LIMIT or not pins_memory():
        return value.to("cpu")
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)


def to_device(value: Any, device: torch.device) -> Any:
    """Copy a tensor to `device`, in stream order; from the CPU through pinned memory."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu" and (value.layout is not torch.strided or not value.is_pinned()):
        plain = value.layout is torch.strided and not (value.is_conj() or value.is_neg())
        if value.nbytes > CHUNK and plain and value.is_contiguous() and pins_memory():
            return _in_chunks(value, device)
        if value.layout is not torch.strided or value.nbytes > PINNED_LIMIT or not pins_memory():
            return value.to(device)
        value = torch.empty_like(value, pin_memory=True).copy_(value)
    return value.to(device, non_blocking=True)


def _in_chunks(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a contiguous tensor of the CPU to `device` through pinned memory, chunk by chunk, in stream order."""
    copy = torch.empty_like(value, device=device)
    chunks = (whole.view(-1).view(torch.uint8).split(CHUNK) for whole in (value, copy))
    for source, target in zip(*chunks, strict=True):
        target.copy_(torch.empty_like(source, pin_memory=True).copy_(source), non_blocking=True)
    return copy
