"""The steps of a plan, `Placed` and `Transfer`; and execution, measured or predicted: `Span` and `Timeline`, one type
for both to be laid over each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal, TypeAlias

from ..errors import LateError
from . import pictures


@dataclass(frozen=True, slots=True)
class Placed:
    """A cluster on a compute lane (`cpu/0`), from `start` to `end` in predicted seconds. `more` are the other lanes of
    the device that it takes at the same time."""

    cluster: str
    device: str
    lane: str
    start: float
    end: float
    more: tuple[str, ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """All lanes it takes."""
        return (self.lane, *self.more)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value on its way from `src` to `dst` in the copy queue `lane`; `ready` is when it could have begun."""

    value: str
    src: str
    dst: str
    lane: str
    start: float
    end: float
    ready: float
    bytes: int


Step: TypeAlias = Placed | Transfer


@dataclass(frozen=True, slots=True)
class Span:
    """Something one lane did from `start` to `end`, in seconds from the start of the call.

    `compute`: the cluster `name`, or within it a task (then `cluster` is set). `copy`: the value `name` from `src` to
    `dst`, of which `ready` is when it could have begun. `called` is what people read instead of `name`, where that
    differs; `phase` the part of a training step that a computation is of.
    """

    lane: str
    device: str
    kind: Literal["compute", "copy"]
    name: str
    start: float
    end: float
    cluster: str = ""
    module: str = ""
    source: str = ""
    src: str = ""
    dst: str = ""
    bytes: int = 0
    ready: float | None = None
    called: str = ""
    phase: str = ""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end - self.start

    @property
    def title(self) -> str:
        """Display name; the name itself where it has none."""
        return self.called or self.name


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use on one device over time: `steps` are (seconds, bytes) at each change, `cap` None is no limit."""

    device: str
    steps: tuple[tuple[float, int], ...]
    cap: int | None = None

    @property
    def peak(self) -> int:
        """The most bytes in use at once."""
        return max((count for _, count in self.steps), default=0)


@dataclass(frozen=True)
class Timeline:
    """Spans of one call over all lanes. `makespan` is the caller's wall clock (measured) or the plan's end (predicted).

    `label` says how the figures must be called (emulated, declared); `late` is by what share emulated work outlasted
    its modelled time at worst, `needs_slow_down` the slow-down that would have been enough (0: it was in time).
    `predicted` is the plan's own timeline beside a measured one. `path` are the numbers of the spans on the critical
    path, by start, where that is known: empty when measured. `began` is the second of `time.perf_counter` at which a
    measured call began; `ranks` the number of processes whose calls these are, of which each names its devices
    `rank 2 (host1)/cpu`.
    """

    title: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    makespan: float
    memory: tuple[Memory, ...] = ()
    label: str = ""
    late: float = 0.0
    predicted: Timeline | None = None
    needs_slow_down: float = 0.0
    path: tuple[int, ...] = ()
    began: float = 0.0
    ranks: int = 1

    def on_time(self) -> Timeline:
        """Self, or LateError when its figures mean nothing because emulated work could not keep its clock."""
        if self.needs_slow_down:
            raise LateError(
                f"{self.title!r} was {self.late:.1%} of its modelled time behind its declared clock, so its figures "
                f"mean nothing; give the machine slow_down={math.ceil(self.needs_slow_down)} or more"
            )
        return self

    def then(self, later: Timeline) -> Timeline:
        """This, and what came right after it: the backward of a forward."""

        def shifted(span: Span) -> Span:
            ready = None if span.ready is None else span.ready + self.makespan
            return replace(span, start=span.start + self.makespan, end=span.end + self.makespan, ready=ready)

        after = {memory.device: memory for memory in later.memory}
        memory = tuple(
            replace(own, steps=(*own.steps, *((at + self.makespan, n) for at, n in after[own.device].steps)))
            if own.device in after
            else own
            for own in self.memory
        )
        both = self.predicted.then(later.predicted) if self.predicted and later.predicted else None
        return replace(
            self,
            lanes=tuple(dict.fromkeys((*self.lanes, *later.lanes))),
            spans=(*self.spans, *map(shifted, later.spans)),
            makespan=self.makespan + later.makespan,
            memory=memory,
            late=max(self.late, later.late),
            predicted=both,
            needs_slow_down=max(self.needs_slow_down, later.needs_slow_down),
            path=(*self.path, *(number + len(self.spans) for number in later.path)),
        )

    def busy(self, lane: str) -> float:
        """Seconds in which a lane was at work; spans nested in a cluster are not counted twice."""
        return sum(span.seconds for span in self.spans if span.lane == lane and not span.cluster)

    def _repr_html_(self) -> str:
        return str(pictures.render("html", self))

    def save(self, path: str | PathLike[str]) -> None:
        """Write it for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.svg`, `.html`, `.png`)."""
        pictures.render("save", self, path)
