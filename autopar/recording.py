"""The timelines of recorded calls: `Recording`, and `Recorded` for what makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Protocol

from .errors import AutoparError
from .timeline import Timeline


class Recording:
    """The timelines of the calls made inside `with fast.record() as timeline`; speaks for the last of them."""

    def __init__(self) -> None:
        self.calls: list[Timeline] = []

    @property
    def last(self) -> Timeline:
        """The timeline of the last call; AutoparError when there was none."""
        if not self.calls:
            raise AutoparError(
                "nothing was recorded; call the compiled model inside `with fast.record() as timeline:`"
            )
        return self.calls[-1]

    @property
    def median(self) -> Timeline:
        """The timeline whose makespan is the median of all calls; AutoparError when there was none."""
        ordered = sorted(self.calls, key=lambda timeline: timeline.makespan)
        return ordered[(len(ordered) - 1) // 2] if ordered else self.last

    def save(self, path: str | PathLike[str]) -> None:
        """Write the median call: `.json`, `.json.gz` for Perfetto, `.svg`, `.html`, `.png` as a picture."""
        self.median.save(path)


class Program(Protocol):
    """What can be called with and without being measured."""

    def run(self, inputs: Sequence[Any], record: bool) -> tuple[list[Any], Timeline | None]:
        """The outputs of one call and, with `record`, its timeline."""


class Recorded:
    """What can be recorded: while `recording` is there, each call adds its timeline to it; `timeline` is the last."""

    recording: Recording | None = None
    timeline: Timeline | None = None

    def executed(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of one call, which is measured while there is a recording."""
        recording = self.recording
        outputs, timeline = program.run(inputs, recording is not None)
        if recording is not None and timeline is not None:
            recording.calls.append(timeline)
            self.timeline = timeline
        return outputs

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Measure every call inside the block: `with step.record() as timeline: step(x, y)`."""
        outer, self.recording = self.recording, Recording()
        try:
            yield self.recording
        finally:
            self.recording = outer
