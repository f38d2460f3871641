"""The timelines of recorded calls: `Recording`, and `Recorded` for what makes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Protocol

from ..errors import AutoparError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from .executor import Executor
from .tuned import TunedExecutor

log = logging.getLogger("autopar")


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
    def counted(self) -> list[Timeline]:
        """The calls whose figures count: all but those in which emulated work could not keep its declared clock, and
        those on a faster clock than the last."""
        kept = [timeline for timeline in self.calls if not timeline.needs_slow_down]
        return [timeline for timeline in kept if timeline.label == kept[-1].label]

    @property
    def median(self) -> Timeline:
        """The timeline whose makespan is the median of the calls that count, of all where none does; AutoparError when
        there was none."""
        ordered = sorted(self.counted or self.calls, key=lambda timeline: timeline.makespan)
        return ordered[(len(ordered) - 1) // 2] if ordered else self.last

    def save(self, path: str | PathLike[str]) -> None:
        """Write the median call: `.json`, `.json.gz` for Perfetto, `.svg`, `.html`, `.png` as a picture."""
        self.median.save(path)


class _Clocked(Protocol):
    """A plan, the program that runs it, and the declared clock they run on."""

    @property
    def plan(self) -> Plan:
        """The plan."""

    @property
    def executor(self) -> Executor | TunedExecutor:
        """The executor of the program."""

    def slower(self, slow_down: float) -> None:
        """From the next call on, let the clock run `slow_down` times slower than the chips."""


class Recorded:
    """Base of everything that can be recorded: while `recording` is there, each call adds its timeline to it;
    `timeline` is the last.

    Where a recorded call finds that this machine could not keep the declared clock of a `machine` that leaves its
    slow-down open, the clock is slowed down for the calls after it.
    """

    machine: Machine
    recording: Recording | None = None
    timeline: Timeline | None = None

    def executed(self, prepared: _Clocked, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of one call, which is measured while there is a recording."""
        recording = self.recording
        outputs, timeline = prepared.executor.run(inputs, recording is not None)
        if recording is not None and timeline is not None:
            recording.calls.append(timeline)
            self.timeline = timeline
            self.keep_up(prepared, timeline)
        return outputs

    def keep_up(self, prepared: _Clocked, timeline: Timeline) -> None:
        """Slow the clock down as far as `timeline` says it needs, unless the user has set it."""
        needed = timeline.needs_slow_down
        if not self.machine.slow_down and needed > prepared.plan.costed.machine.slow_down:
            prepared.slower(needed)
            log.info(
                "%s was %.0f %% behind its declared clock, which runs %g times slower than the chips from now on",
                timeline.title, 100 * timeline.late, prepared.plan.costed.machine.slow_down,
            )  # fmt: skip

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Measure every call inside the block: `with step.record() as timeline: step(x, y)`."""
        outer, self.recording = self.recording, Recording()
        try:
            yield self.recording
        finally:
            self.recording = outer
