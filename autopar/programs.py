"""Exactly which steps: `Program`, flat lists of `Compute`, `Copy`, `Record`, `Wait` and `Free`, one list a lane.

A buffer is one value on one device, named `value@device`. A lane executes its steps in order; between lanes only
`Record` and `Wait` order anything. `lower` makes a program from a plan, `check` proves it right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Compute:
    """Call a task: read `reads`, allocate and fill `writes`. Both name buffers on the lane's device."""

    task: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Allocate `dst` and fill it from `src`, a buffer of another device."""

    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class Record:
    """Everything before this in the lane happens before whoever waits for `event`."""

    event: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on only when `event` has been recorded and what it stands for has ended."""

    event: str


@dataclass(frozen=True, slots=True)
class Free:
    """Give the memory of a buffer back. In the lane that allocated it, after the last reader on any lane."""

    buffer: str


Step: TypeAlias = Compute | Copy | Record | Wait | Free


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value on one device. `storage` is the buffer whose memory it shares (itself when none).

    `kind`: `given` is there before the call (an input, or state at its home), `resident` is a copy of state kept from
    call to call, `made` is allocated and freed by steps, `result` is allocated by a step and handed to the caller.
    """

    name: str
    value: str
    device: str
    bytes: int
    storage: str
    kind: Literal["given", "resident", "made", "result"]


@dataclass(frozen=True, slots=True)
class Lane:
    """An in-order queue of a device and its steps."""

    name: str
    device: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """Steps for each lane that has any, the buffers they name, memory caps, and which buffers are the results.

    `outputs` are buffer names in the order of the graph's outputs, `updates` (buffer, input or state value) pairs to
    be written back once every lane is done. `workspace` is (task, scratch bytes). `caps` is (device, bytes).
    """

    name: str
    lanes: tuple[Lane, ...]
    buffers: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    workspace: tuple[tuple[str, int], ...] = ()
    caps: tuple[tuple[str, int], ...] = ()

    @cached_property
    def buffer(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def lane(self) -> dict[str, Lane]:
        """Lanes by name."""
        return {lane.name: lane for lane in self.lanes}
