"""`Program`, the exact steps of each lane: `Compute`, `Piece`, `Copy`, `Record`, `Wait` and `Free`.

A buffer is one value on one device, named `value@device`. A lane runs its steps in order; only `Record` and
`Wait` order steps of different lanes. `lower` makes a program from a plan, `check` proves it correct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

FORMAT = "autopar program 1"


@dataclass(frozen=True, slots=True)
class Compute:
    """Call a task: read `reads`, allocate and fill `writes`. Both name buffers on the lane's device."""

    task: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Call the kernel of several tasks: read `reads`, allocate and fill `writes`. Values between these tasks
    are internal to the kernel and have no buffer."""

    tasks: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Allocate `dst` and fill it from `src`, a buffer on another device."""

    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class Record:
    """Signal `event`: all earlier steps of the lane happen before the steps after its waits."""

    event: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `event` is recorded and the steps before the record have ended."""

    event: str


@dataclass(frozen=True, slots=True)
class Free:
    """Free a buffer in the lane that made it, after its last reader on any lane and all buffers that are
    views of it.

    An operator that may copy (`reshape`) can therefore return a view or new memory. The memory is freed with
    the buffer that owns the storage.
    """

    buffer: str


Step: TypeAlias = Compute | Piece | Copy | Record | Wait | Free
Kind: TypeAlias = Literal["given", "resident", "made", "result"]


def tasks_of(step: Step) -> tuple[str, ...]:
    """Return the tasks that a step computes, in order."""
    return (step.task,) if isinstance(step, Compute) else step.tasks if isinstance(step, Piece) else ()


def reads(step: Step) -> tuple[str, ...]:
    """Return the buffers that a step reads."""
    return step.reads if isinstance(step, Compute | Piece) else (step.src,) if isinstance(step, Copy) else ()


def makes(step: Step) -> tuple[str, ...]:
    """Return the buffers that a step allocates."""
    return step.writes if isinstance(step, Compute | Piece) else (step.dst,) if isinstance(step, Copy) else ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value on one device.

    storage: buffer whose memory it shares; itself if none.
    kind: `given`: exists before the call (an input, or state at its home); `resident`: replica of state;
    `made`: allocated and freed by steps; `result`: allocated by a step, returned to the caller.
    """

    name: str
    value: str
    device: str
    bytes: int
    storage: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Lane:
    """An in-order queue of a device and its steps."""

    name: str
    device: str
    steps: tuple[Step, ...]

    def describe(self, position: int) -> str:
        """Return a step as text for messages: its number, the lane and what it does."""
        match self.steps[position]:
            case Compute(task=task):
                what = f"task {task!r}"
            case Piece(tasks=tasks):
                what = f"piece of {len(tasks)} tasks from {tasks[0]!r}"
            case Copy(src=src, dst=dst):
                what = f"copy {src} -> {dst}"
            case Free(buffer=buffer):
                what = f"free {buffer}"
            case Record(event=event):
                what = f"record {event}"
            case Wait(event=event):
                what = f"wait {event}"
        return f"step {position} of lane {self.name} ({what})"


@dataclass(frozen=True)
class Program:
    """Steps of each non-empty lane, and the buffers that they name.

    outputs: buffers, in the order of the graph's outputs.
    updates: (buffer, input or state value): written back once all lanes are done.
    workspace: (first task of a step, scratch bytes).
    caps: (device, bytes).
    keeps: (buffer, state value): the buffer becomes the replica on its device once all lanes are done.
    """

    name: str
    lanes: tuple[Lane, ...]
    buffers: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    workspace: tuple[tuple[str, int], ...] = ()
    caps: tuple[tuple[str, int], ...] = ()
    keeps: tuple[tuple[str, str], ...] = ()

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Buffers that outlive the call, each once: outputs, updates and kept copies of state."""
        pairs = (*self.updates, *self.keeps)
        return tuple(dict.fromkeys((*self.outputs, *(buffer for buffer, _ in pairs))))

    @cached_property
    def buffer(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def lane(self) -> dict[str, Lane]:
        """Lanes by name."""
        return {lane.name: lane for lane in self.lanes}

    def steps(self) -> Iterator[tuple[tuple[int, int], Step]]:
        """Yield every step with (index of its lane, position in the lane)."""
        for index, lane in enumerate(self.lanes):
            yield from (((index, position), step) for position, step in enumerate(lane.steps))

    def save(self, path: str | PathLike[str]) -> None:
        """Write as text, as in `str(program)`."""
        Path(path).write_text(str(self) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        head = [[FORMAT, _word(self.name)]]
        head += [["cap", _word(device), str(count)] for device, count in self.caps]
        head += [["output", _word(name)] for name in self.outputs]
        head += [["update", _word(new), "->", _word(target)] for new, target in self.updates]
        head += [["keep", _word(buffer), "->", _word(state)] for buffer, state in self.keeps]
        head += [["workspace", _word(task), str(count)] for task, count in self.workspace]
        rows = [
            ["buffer", _word(b.name), _word(b.value), _word(b.device), b.kind, str(b.bytes)]
            + (["in", _word(b.storage)] if b.storage != b.name else [])
            for b in self.buffers
        ]
        lines = [" ".join(row) for row in head] + _aligned(rows)
        for lane in self.lanes:
            lines += ["", f"lane {_word(lane.name)} {_word(lane.device)}"]
            lines += _aligned(
                [[str(index), *_words(step)] for index, step in enumerate(lane.steps)], indent="  "
            )
        return "\n".join(lines)


def _words(step: Step) -> list[str]:
    match step:
        case Copy(src, dst):
            return ["copy", _word(src), "->", _word(dst)]
        case Free(name) | Record(name) | Wait(name):
            return [type(step).__name__.lower(), _word(name)]
    kind, tasks = type(step).__name__.lower(), " ".join(map(_word, tasks_of(step)))
    return [kind, tasks, ":", *map(_word, step.reads), "->", *map(_word, step.writes)]


def _word(text: str) -> str:
    plain = text.isprintable() and re.fullmatch(r"[^\s\"#]\S*", text) and text not in ("->", ":", "in")
    return text if plain else json.dumps(text)


def _aligned(rows: list[list[str]], indent: str = "") -> list[str]:
    """Align the first three cells of rows in columns; later cells differ too much in width."""
    widths = [max((len(row[column]) for row in rows if len(row) > column), default=0) for column in range(3)]
    return [
        indent
        + " ".join(
            cell.ljust(min(width, 40)) for cell, width in zip(row, [*widths, *[0] * len(row)])
        ).rstrip()
        for row in rows
    ]
